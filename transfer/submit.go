package transfer

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// Submit queues the whole batch on stream, and returns a handle that is done when all of it is. A
// freed block is found before anything is queued. If the device refuses a kernel, the steps before
// it stay queued. A batch can be submitted once; after an error, including ctx's, it can only be
// closed. An empty batch is done at once.
func (b *Batch) Submit(ctx context.Context, stream device.Stream) (*Copy, error) {
	if err := b.pool.checkStream("Submit", stream); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if err := b.open("Submit"); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	b.state = submitting // other calls change nothing until the next state
	b.mu.Unlock()
	w := b.work(stream)
	c, err := b.pool.enqueue(ctx, w, func() error { return b.runSteps(w) })
	b.mu.Lock()
	if b.state, b.done, b.err = submitted, c, err; err != nil {
		b.state = failed
	}
	closing := b.closing
	b.mu.Unlock()
	if closing {
		err = errors.Join(err, b.Close())
	}
	return c, err
}

// work returns the batch as work to enqueue. The state submitting protects the steps.
func (b *Batch) work(stream device.Stream) *work {
	w := &work{op: OpBatch, stream: stream, blocks: b.blocks}
	for _, s := range b.steps {
		w.kernels = w.kernels || s.op == OpLaunch
		for _, h := range s.host {
			w.counts[s.op].copies++
			w.counts[s.op].bytes += int64(len(h))
			w.bytes += int64(len(h))
		}
	}
	for _, a := range b.arenas.list {
		w.buffers = append(w.buffers, BufferUse{a.buffer, a.writes})
	}
	return w
}

// Close releases the batch's memory, which the pool reuses when the copies that use it are done.
// Close does not wait for them. Outputs can't be collected any more. During a Submit on another
// goroutine, Submit releases the memory at its end. Calling Close again does nothing. After the
// pool's Close, which frees the memory, it returns [ErrClosed] once.
func (b *Batch) Close() error {
	b.mu.Lock()
	if b.state == submitting {
		b.closing = true
		b.mu.Unlock()
		return nil
	}
	b.state = batchClosed
	b.steps, b.outputs, b.blocks = nil, nil, nil
	b.dropped.Stop()
	held := *b.arenas
	b.arenas.list = nil
	b.mu.Unlock()
	return held.release()
}
