package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// BufferUse is how queued work uses a buffer.
type BufferUse struct {
	Buffer Buffer
	// Writes says that the work writes the buffer; else it only reads it.
	Writes bool
}

// work is what is queued on one stream, and what it touches. It has been checked.
type work struct {
	op      Op
	stream  device.Stream
	bytes   int64
	blocks  []memcache.Block
	buffers []BufferUse // each buffer once; empty ones are allowed
	kernels bool        // there is more to do than copies
	begun   int         // how many of buffers are announced
	partial bool        // something was queued before queue failed
}

// submit queues work, between waits for what other streams do with its buffers and an event that says when it is done.
// Its blocks are recorded on the stream. If there is nothing to do nothing happens.
func (p *Pool) submit(ctx context.Context, w *work, queue func() error) (*Copy, error) {
	if err := p.enter(ctx, w.op.call()); err != nil {
		return nil, err
	}
	defer p.gate.Leave()
	if w.bytes == 0 && !w.kernels {
		return &Copy{}, nil
	}
	for _, b := range w.blocks {
		if err := b.RecordStream(w.stream); err != nil {
			return nil, fmt.Errorf("transfer: %s: %w", w.op.call(), err)
		}
	}
	ev, err := p.events.get()
	if err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", w.op.call(), err)
	}
	o := p.observe(ctx, w)
	m, err := p.queue(w, ev, o, queue)
	if err != nil {
		err = fmt.Errorf("transfer: %s of %d bytes on stream %d: %w", w.op.call(), w.bytes, w.stream.ID(), err)
		o.fail(err)
		return nil, err
	}
	if int(w.op) < len(p.copied) {
		p.copied[w.op].copies.Add(1)
		p.copied[w.op].bytes.Add(w.bytes)
	}
	if o != nil {
		p.notifier.follow(w.stream, o)
	}
	return &Copy{m, w.bytes}, nil
}

// queue queues the work and an event after it.
func (p *Pool) queue(w *work, ev device.Event, o *observed, queue func() error) (*mark, error) {
	err := w.begin()
	if err == nil {
		o.started(w.stream)
		err = queue()
	}
	if err != nil && !w.partial {
		w.abort(false)
		p.events.put(ev)
		return nil, err
	}
	o.ended(w.stream)
	m, recordErr := p.events.record(w.stream, ev)
	if recordErr != nil {
		w.abort(true)
		if err == nil {
			err = recordErr
		}
		return nil, err
	}
	held := false
	for _, u := range w.buffers {
		if u.Buffer.slab == nil {
			continue
		}
		held = true
		if replaced := u.Buffer.slab.commit(m, u.Writes); replaced != nil {
			p.forget(replaced)
		}
	}
	if !held {
		p.forget(m)
	}
	return m, err
}

// begin announces the work to its buffers, and lets the stream wait for what uses them on other streams.
func (w *work) begin() error {
	for _, u := range w.buffers {
		if u.Buffer.slab == nil {
			w.begun++
			continue
		}
		earlier, err := u.Buffer.begin(w.stream, u.Writes)
		if err != nil {
			return err
		}
		w.begun++
		for _, m := range earlier {
			if err := m.before(w.stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// abort notes that the work was not queued, or that it was and nothing says when it is done.
func (w *work) abort(queued bool) {
	for _, u := range w.buffers[:w.begun] {
		if u.Buffer.slab != nil {
			u.Buffer.slab.abort(queued)
		}
	}
}

// observe tells the observer that the work is about to be queued. It returns nil if nobody wants to know.
func (p *Pool) observe(ctx context.Context, w *work) *observed {
	if p.observer == nil {
		return nil
	}
	_, op := p.observer.Start(ctx, w.op)
	if op == nil {
		return nil
	}
	o := &observed{pool: p, op: op, event: OpInfo{
		Op: w.op, Device: p.dev.Name(), Stream: w.stream.ID(), Bytes: w.bytes, Queued: time.Now(),
	}}
	if w.op != OpBatch && len(w.blocks) > 0 {
		o.event.Serial = w.blocks[0].Serial()
	}
	return o
}
