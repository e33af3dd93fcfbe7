package transfer

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"
)

// A registered slice is a slab that the caller owns. Its Buffer is copied and ordered like any
// other, but the slab is never idle, is in no shard, counts in Registered alone, and its Release
// waits. The Go memory is also pinned in the runtime's sense (runtime.Pinner) until it is
// unregistered, because the driver keeps its address and the garbage collector must not free it.

// Register pins b in place (cuMemHostRegister), so that it is copied without staging, and returns a
// buffer whose memory is b. Its copies, its states and [Buffer.Range] are those of any buffer.
// Register costs about as much as a pinned allocation, so it is meant for long-lived slices. Until
// the buffer's Release, which waits for its copies and unregisters it, b is kept alive and must not
// be used while a copy is in flight.
//
// For a slice that overlaps pinned or registered memory the device returns an error. A GPU pins
// whole pages, so two slices in one page can't both be registered. For an empty b Register returns
// the empty buffer.
func (p *Pool) Register(ctx context.Context, b []byte) (Buffer, error) {
	if err := p.enter(ctx, "Register"); err != nil {
		return Buffer{}, err
	}
	defer p.gate.Leave()
	if len(b) == 0 {
		return Buffer{}, nil
	}
	s := &slab{pool: p, mem: b[:len(b):len(b)], registered: true}
	// The driver keeps the address until Unregister, even if the caller drops the slice.
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

// unregister ends the registration of a slab that is unlinked. The device waits for its copies.
func (p *pinned) unregister(ctx context.Context, s *slab) error {
	for _, u := range s.uses {
		// This orders the copies before the owner's next access. Unregister returns the device's
		// errors.
		_ = u.last.wait(ctx)
	}
	end := p.start(ctx, OpUnregister, s.size())
	err := p.dev.Unregister(s.mem)
	end(err)
	s.pinner.Unpin()
	for _, u := range s.uses {
		u.last.finish(err) // no buffer refers to the completion any more
	}
	if err != nil {
		return fmt.Errorf("transfer: unregistering %d bytes: %w", s.size(), err)
	}
	return nil
}
