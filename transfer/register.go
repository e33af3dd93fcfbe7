package transfer

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"
)

// A registered slice is a slab that the caller owns: a Buffer of it is copied and ordered as any
// other, but it is never idle, is in no shard, counts in Registered alone, and its Release waits.
// The Go memory is pinned in the runtime's sense too (package runtime, Pinner) until it is
// unregistered: the driver knows its address, and the garbage collector must not free it.

// Register pins b in place (cuMemHostRegister), so that copies reach it without staging, and
// returns a buffer that is b: its copies, [Buffer.Range] and states are those of any buffer. It
// costs about as much as allocating pinned memory, so it is for slices that stay. Until the
// buffer's Release, which waits for its copies and unregisters, b is kept alive and must not be
// used while a copy is in flight.
//
// A slice that overlaps pinned or registered memory is an error of the device; on a GPU whole pages
// are pinned, and two slices in one page can't both be registered. An empty b is the empty buffer.
func (p *Pool) Register(ctx context.Context, b []byte) (Buffer, error) {
	if err := p.enter(ctx, "Register"); err != nil {
		return Buffer{}, err
	}
	defer p.gate.Leave()
	if len(b) == 0 {
		return Buffer{}, nil
	}
	s := &slab{pool: p, mem: b[:len(b):len(b)], registered: true}
	// The driver knows the address until Unregister, whatever becomes of the caller's slice.
	s.pinner = new(runtime.Pinner)
	s.pinner.Pin(unsafe.SliceData(b))
	end := p.pinned.start(ctx, OpRegister, s.size())
	err := p.dev.Register(s.mem)
	end(err)
	if err != nil {
		s.pinner.Unpin()
		return Buffer{}, fmt.Errorf("transfer: Register of %d bytes: %w", len(b), err)
	}
	p.pinned.link(s)
	return s.handOut(s.size()), nil
}

// unregister is Release of a registered slice.
func (b Buffer) unregister() error {
	s := b.slab
	if !s.pool.gate.Enter() {
		return fmt.Errorf("transfer: Release of a %s: the pool of %s is %w", b, s.pool.dev.Name(), ErrClosed)
	}
	defer s.pool.gate.Leave()
	sh := s.pool.cache.lockShard()
	err := b.expire(sh)
	sh.Unlock()
	if err != nil {
		return fmt.Errorf("transfer: Release of a %w", err)
	}
	s.pool.pinned.unlink(s)
	return s.pool.pinned.unregister(context.Background(), s)
}

// unregister ends a registration that is off the books. The device waits for its copies.
func (p *pinned) unregister(ctx context.Context, s *slab) error {
	for _, u := range s.uses {
		// So that what the copies did comes before what the owner does next; the device's own errors are Unregister's.
		_ = u.last.wait(ctx)
	}
	end := p.start(ctx, OpUnregister, s.size())
	err := p.dev.Unregister(s.mem)
	end(err)
	s.pinner.Unpin()
	for _, u := range s.uses {
		u.last.finish(err) // no buffer refers to it any more
	}
	if err != nil {
		return fmt.Errorf("transfer: unregistering %d bytes: %w", s.size(), err)
	}
	return nil
}
