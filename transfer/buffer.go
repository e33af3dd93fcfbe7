package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Buffer is pinned host memory that a [Pool] handed out. It is idle, or in flight while copies that use it
// are not done, and it ends with Release.
//
// Its methods may be called from any goroutine, but its bytes belong to one at a time.
type Buffer struct {
	pool  *Pool
	slab  *slab // nil if the buffer is empty
	bytes []byte

	mu       sync.Mutex
	uses     []use
	queueing int  // copies that are being queued
	writing  bool // the one that is being queued writes the buffer
	released bool
	closed   bool // the pool was closed while the buffer was out
	tainted  bool // a copy was queued and no event follows it
}

// use is the last copy of a buffer on one stream.
type use struct {
	stream uint64
	mark   *mark
	wrote  bool // this copy, or one before it on the stream, writes the buffer
}

// Len is the size in bytes that Get was asked for.
func (b *Buffer) Len() int { return len(b.bytes) }

// String is "buffer of N bytes".
func (b *Buffer) String() string { return fmt.Sprintf("buffer of %d bytes", len(b.bytes)) }

// Bytes is the buffer's memory. It is nil while a copy is in flight, also one that only reads, and after
// Release; [Buffer.Check] says which. The slice must not be used once a copy is queued, until that is
// done, and never after Release.
func (b *Buffer) Bytes() []byte {
	if b.Check() != nil {
		return nil
	}
	return b.bytes
}

// Check returns nil if the host may touch the buffer: if all its copies are done. Otherwise the error wraps
// [ErrInFlight] or [ErrReleased], or it is the device's own. It never waits.
func (b *Buffer) Check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.check()
}

func (b *Buffer) check() error {
	if b.released {
		return fmt.Errorf("transfer: a buffer of %d bytes was %w: Get another", len(b.bytes), ErrReleased)
	}
	if b.closed {
		return fmt.Errorf("transfer: a buffer of %d bytes: the pool of %s is %w", len(b.bytes), b.pool.dev.Name(), ErrClosed)
	}
	for i, u := range b.uses {
		done, err := u.mark.done()
		if err != nil {
			return fmt.Errorf("transfer: a buffer of %d bytes: %w", len(b.bytes), err)
		}
		if !done {
			b.uses = b.uses[i:]
			return b.inFlight()
		}
	}
	b.uses = nil
	if b.queueing > 0 {
		return b.inFlight()
	}
	if b.tainted {
		return fmt.Errorf("transfer: %w", b.endless())
	}
	return nil
}

// endless is the error of a tainted buffer.
func (b *Buffer) endless() error {
	return fmt.Errorf("a buffer of %d bytes is %w, and nothing says until when: Release it and Get another",
		len(b.bytes), ErrInFlight)
}

func (b *Buffer) inFlight() error {
	return fmt.Errorf("transfer: a buffer of %d bytes is %w: Wait for its copies first", len(b.bytes), ErrInFlight)
}

// Wait waits until all copies that use the buffer are done. Cancelling ctx ends the waiting, not the
// copies. After a copy that was queued, but returned an error as no event could be recorded behind it, there is
// nothing to wait for: the error wraps [ErrInFlight].
func (b *Buffer) Wait(ctx context.Context) error {
	for {
		b.mu.Lock()
		err := b.check()
		var m *mark
		if len(b.uses) > 0 {
			m = b.uses[0].mark
		}
		b.mu.Unlock()
		if m == nil || !errors.Is(err, ErrInFlight) {
			return err
		}
		if err := m.wait(ctx); err != nil {
			return fmt.Errorf("transfer: waiting for a buffer of %d bytes: %w", len(b.bytes), err)
		}
	}
}

// Release gives the buffer back. Its memory is handed out again when the copies that use it are done, so it
// may be released as soon as they are queued. A second Release wraps [ErrReleased]; one while another
// goroutine queues a copy wraps [ErrInFlight]; both change nothing.
func (b *Buffer) Release() error {
	// Before anything changes: Close either waits for this call, or finds the buffer with all its copies.
	open := b.slab != nil && b.pool.gate.enter()
	if open {
		defer b.pool.gate.leave()
	}
	b.mu.Lock()
	if b.released {
		b.mu.Unlock()
		return fmt.Errorf("transfer: Release of a buffer of %d bytes that was %w before", len(b.bytes), ErrReleased)
	}
	if b.queueing > 0 {
		b.mu.Unlock()
		return fmt.Errorf("transfer: Release of a buffer of %d bytes while a copy is being queued: %w", len(b.bytes), ErrInFlight)
	}
	b.released = true
	uses, tainted := b.uses, b.tainted
	if open {
		b.uses = nil
	}
	b.mu.Unlock()
	if b.slab == nil {
		return nil
	}
	if !open {
		return fmt.Errorf("transfer: Release of a buffer of %d bytes: the pool of %s is %w", len(b.bytes), b.pool.dev.Name(), ErrClosed)
	}
	b.pool.release(b, uses, tainted)
	return nil
}

// release takes back the slab of b.
func (p *Pool) release(b *Buffer, uses []use, tainted bool) {
	s := b.slab
	p.mu.Lock()
	p.takeBack(s)
	s.tainted = tainted
	for _, u := range uses {
		s.marks = append(s.marks, u.mark)
		p.enqueue(u.mark, s)
	}
	if s.waiting > 0 {
		p.stats.Pending++
	} else {
		p.retire(s)
	}
	var victims []*slab
	if p.stats.CachedBytes.Current > p.budget || tainted {
		p.collect()
		victims = p.trim()
	}
	p.mu.Unlock()
	p.freeAll(context.Background(), victims)
}
