package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Copy is a queued copy. It needs no closing.
type Copy struct {
	mark  *mark // nil: there was nothing to copy
	bytes int64
}

// Bytes is the size of the copy.
func (c *Copy) Bytes() int64 { return c.bytes }

// Done reports whether the copy is done. It never waits. What the copy wrote may be read once it is true. A
// copy that failed with its device counts as done; Err has the error.
func (c *Copy) Done() bool {
	if c.mark == nil {
		return true
	}
	done, _ := c.mark.done()
	return done
}

// Err is the device's error if the copy is known to have failed, otherwise nil. It never waits.
func (c *Copy) Err() error {
	if c.mark == nil {
		return nil
	}
	if _, err := c.mark.done(); err != nil {
		return fmt.Errorf("transfer: a copy of %d bytes: %w", c.bytes, err)
	}
	return nil
}

// Wait waits until the copy is done, and returns Err. Cancelling ctx ends the waiting, not the copy.
func (c *Copy) Wait(ctx context.Context) error {
	if c.mark == nil {
		return nil
	}
	if err := c.mark.wait(ctx); err != nil {
		return fmt.Errorf("transfer: waiting for a copy of %d bytes: %w", c.bytes, err)
	}
	return nil
}

// H2D queues on stream a copy of bytes bytes from src, at srcOffset, to dst, at dstOffset (cuMemcpyHtoDAsync).
// src is in flight until the copy is done; it may be released at once. dst is recorded on stream, and may be
// freed at once. The copy runs after what stream has queued, and after copies of other streams that write
// src; work of other streams on dst is the caller's to order.
//
// Everything is checked before anything is queued: ranges wrap [ErrRange], a released buffer
// [ErrReleased], a nil stream, or one or a buffer of another device or pool, [ErrInvalid]. 0 bytes touch
// nothing. H2D waits only while the stream's queue is full.
func (p *Pool) H2D(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src *Buffer, srcOffset, bytes int64) (*Copy, error) {
	return p.copy(ctx, transfer{OpH2D, stream, dst, dstOffset, src, srcOffset, bytes})
}

// D2H queues on stream a copy of bytes bytes from src, at srcOffset, to dst, at dstOffset
// (cuMemcpyDtoHAsync). It is the reverse of H2D, with its rules; the copy runs also after copies of other
// streams that read dst.
func (p *Pool) D2H(ctx context.Context, stream device.Stream, dst *Buffer, dstOffset int64, src memcache.Block, srcOffset, bytes int64) (*Copy, error) {
	return p.copy(ctx, transfer{OpD2H, stream, src, srcOffset, dst, dstOffset, bytes})
}

// transfer is a copy between a buffer and a block.
type transfer struct {
	op           Op
	stream       device.Stream
	block        memcache.Block
	blockOffset  int64
	buffer       *Buffer
	bufferOffset int64
	bytes        int64
}

func (p *Pool) copy(ctx context.Context, t transfer) (*Copy, error) {
	if err := p.check(t); err != nil {
		return nil, err
	}
	if err := p.enter(ctx, t.op.call()); err != nil {
		return nil, err
	}
	defer p.gate.leave()
	if t.bytes == 0 {
		return &Copy{}, nil
	}
	if err := t.block.RecordStream(t.stream); err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", t.op.call(), err)
	}
	ev, err := p.events.get()
	if err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", t.op.call(), err)
	}
	o, e := p.begin(ctx, t)
	m, err := p.queue(t, ev)
	if err != nil {
		err = fmt.Errorf("transfer: %s of %d bytes on stream %d: %w", t.op.call(), t.bytes, t.stream.ID(), err)
		if o != nil {
			e.Done, e.Err = time.Now(), err
			o.End(e)
		}
		return nil, err
	}
	count := &p.copied[t.op]
	count.copies.Add(1)
	count.bytes.Add(t.bytes)
	if o != nil {
		p.notifier.follow(t.stream, o, e)
	}
	return &Copy{m, t.bytes}, nil
}

// queue queues the copy and an event after it.
func (p *Pool) queue(t transfer, ev device.Event) (*mark, error) {
	writes := t.op == OpD2H
	earlier, err := t.buffer.begin(t.stream, writes)
	if err != nil {
		p.events.put(ev)
		return nil, err
	}
	for _, m := range earlier {
		if err := m.before(t.stream); err != nil {
			t.buffer.abort(false)
			p.events.put(ev)
			return nil, err
		}
	}
	host, ptr := t.buffer.bytes[t.bufferOffset:t.bufferOffset+t.bytes], t.block.Ptr()+device.Ptr(t.blockOffset)
	if writes {
		err = t.stream.CopyD2H(host, ptr)
	} else {
		err = t.stream.CopyH2D(ptr, host)
	}
	if err != nil {
		t.buffer.abort(false)
		p.events.put(ev)
		return nil, err
	}
	m, err := p.events.record(t.stream, ev)
	if err != nil {
		t.buffer.abort(true)
		return nil, err
	}
	if replaced := t.buffer.commit(m, writes); replaced != nil {
		p.forget(replaced)
	}
	return m, nil
}

// begin tells the observer that the copy is about to be queued.
func (p *Pool) begin(ctx context.Context, t transfer) (Operation, Event) {
	if p.observer == nil {
		return nil, Event{}
	}
	_, o := p.observer.Start(ctx, t.op)
	if o == nil {
		return nil, Event{}
	}
	return o, Event{
		Op: t.op, Device: p.dev.Name(), Stream: t.stream.ID(), Serial: t.block.Serial(), Bytes: t.bytes, Queued: time.Now(),
	}
}
