package transfer

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// How a batch ends: it is queued as one piece of work (enqueue.go), or closed without.

// Submit queues everything on stream, and returns the handle of its end. A block that was freed is
// found before anything is queued; a kernel that the device refuses leaves what was added before it
// queued. A batch is submitted once; after an error, ctx's included, it can only be closed. An
// empty batch is done at once.
func (b *Batch) Submit(ctx context.Context, stream device.Stream) (*Copy, error) {
	if err := b.pool.checkStream("Submit", stream); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if err := b.open("Submit"); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	b.state = submitting // until it changes, nothing else does
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

// work is what the batch is to enqueue. Its state keeps everybody else from its steps.
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

// Close gives the batch's memory back, when the copies that use it are done. It does not wait for
// them, and outputs can't be collected any more; beside a Submit, that gives it back. It is
// idempotent; after the pool's Close, which took the memory, it returns [ErrClosed] once.
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
