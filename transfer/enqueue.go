package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// How work gets onto a stream. Every copy, fill, kernel and batch takes the same three steps:
//
//	Pool.enqueue   checks that the pool is open, records the blocks, and notifies the observer
//	Pool.fence     queues waits for other streams' copies of the buffers, the work, and an event
//	run            is the work itself: one call of the stream, or a batch's steps (Batch.runSteps)
//
// A buffer is announced before the work is queued and committed after the event is recorded.
// Between the two no lock is held, because the stream's calls may wait while its queue is full.
// Another goroutine that uses the same buffer meanwhile gets ErrInFlight (see use.go). Each work
// has one completion, not one for each buffer, so a batch of a thousand copies costs one event.

// BufferUse is how queued work uses a buffer.
type BufferUse struct {
	Buffer Buffer
	// Writes is true if the work writes the buffer, false if it only reads it.
	Writes bool
}

// work is checked work for one stream, with the blocks and buffers that it uses.
type work struct {
	op        Op
	stream    device.Stream
	bytes     int64
	blocks    []memcache.Block
	buffers   []BufferUse // each buffer once; empty ones are allowed
	kernels   bool        // it is not only copies
	counts    copyCounts  // of a batch's copies, for Stats
	announced int         // number of buffers that are announced
	partial   bool        // something was queued before run failed
}

// copyCounts are the number of copies in each direction and their bytes.
type copyCounts [copyOps]struct{ copies, bytes int64 }

// enqueue queues work after waits for other streams' copies of its buffers, and an event after it
// that marks its end. It records the work's blocks on the stream. For work without bytes and
// kernels it does nothing.
func (p *Pool) enqueue(ctx context.Context, w *work, run func() error) (*Copy, error) {
	if err := p.enter(ctx, w.op.call()); err != nil {
		return nil, err
	}
	defer p.gate.Leave()
	if w.bytes == 0 && !w.kernels {
		return &Copy{}, nil
	}
	// Recording comes first, so that a freed block is found before anything is queued.
	for _, b := range w.blocks {
		if err := b.RecordStream(w.stream); err != nil {
			return nil, fmt.Errorf("transfer: %s: %w", w.op.call(), err)
		}
	}
	ev, err := p.dev.NewEvent(device.EventOptions{})
	if err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", w.op.call(), err)
	}
	o := w.observe(ctx, p)
	end, err := p.fence(w, ev, o, run)
	if err != nil {
		err = fmt.Errorf("transfer: %s of %d bytes on stream %d: %w", w.op.call(), w.bytes, w.stream.ID(), err)
		o.fail(err)
		return nil, err
	}
	w.count(ctx, p)
	if o != nil {
		p.notifier.follow(w.stream, o)
	}
	return &Copy{end, w.bytes}, nil
}

// count counts queued work: a single copy by its direction, a batch by those of its copies.
func (w *work) count(ctx context.Context, p *Pool) {
	switch {
	case w.op < copyOps:
		p.copied[w.op].copies.Add(1)
		p.copied[w.op].bytes.Add(w.bytes)
		p.Charge(ctx, w.op, 1, w.bytes)
	case w.op == OpBatch:
		for op, n := range w.counts {
			p.copied[op].copies.Add(n.copies)
			p.copied[op].bytes.Add(n.bytes)
			if n.copies > 0 {
				p.Charge(ctx, Op(op), n.copies, n.bytes)
			}
		}
	}
}

// fence queues the work after other streams' copies of its buffers, and ev after it. If run fails
// without having queued anything, the buffers are unchanged. If the event can't be recorded, the
// end of the work is unknown, so its buffers are tainted.
func (p *Pool) fence(w *work, ev device.Event, o *observed, run func() error) (*completion, error) {
	err := w.announce()
	if err == nil {
		o.started(w.stream)
		err = run()
	}
	// Nothing was queued, except perhaps waits, which do no harm.
	if err != nil && !w.partial {
		w.abort(false)
		ev.Close()
		return nil, err
	}
	o.ended(w.stream)
	end, recordErr := p.record(w.stream, ev)
	if recordErr != nil {
		w.abort(true)
		if err == nil {
			err = recordErr
		}
		return nil, err
	}
	// A completion that no buffer holds must also be polled, so that its event is closed.
	held := false
	for _, u := range w.buffers {
		if u.Buffer.slab == nil {
			continue
		}
		held = true
		if replaced := u.Buffer.slab.commit(end, u.Writes); replaced != nil {
			p.cache.addOrphan(replaced)
		}
	}
	if !held {
		p.cache.addOrphan(end)
	}
	return end, err
}

// announce announces the work to its buffers, and makes the stream wait for the copies on other
// streams that the work must run after.
func (w *work) announce() error {
	for _, u := range w.buffers {
		if u.Buffer.slab == nil {
			w.announced++
			continue
		}
		earlier, err := u.Buffer.announce(w.stream, u.Writes)
		if err != nil {
			return err
		}
		w.announced++
		for _, end := range earlier {
			if err := end.orderBefore(w.stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// abort ends the announcements of work that was not queued, or that was queued with an unknown end.
func (w *work) abort(queued bool) {
	for _, u := range w.buffers[:w.announced] {
		if u.Buffer.slab != nil {
			u.Buffer.slab.abort(queued)
		}
	}
}

// observe notifies the observer that the work is about to be queued. It returns nil if the work is
// not observed.
func (w *work) observe(ctx context.Context, p *Pool) *observed {
	if p.observer == nil {
		return nil
	}
	_, op := p.observer.Start(ctx, w.op)
	if op == nil {
		return nil
	}
	o := &observed{pool: p, op: op, info: OpInfo{
		Op: w.op, Device: p.dev.Name(), Stream: w.stream.ID(), Bytes: w.bytes, Queued: time.Now(),
	}}
	if w.op != OpBatch && len(w.blocks) > 0 {
		o.info.Serial = w.blocks[0].Serial()
	}
	return o
}
