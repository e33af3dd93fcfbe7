package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// A Release ends the handle, by a new serial number in the slab, and gives the slab to the shard
// that the releasing processor uses, which may not be the one it was handed out in: so a shard's
// use of a gauge may be negative. Nothing waits for copies, except those of a registered slice,
// whose memory the caller wants back.

// Release gives the buffer back. Its memory is handed out again when the copies that use it are
// done, so it may be released as soon as they are queued. A second Release wraps [ErrReleased]; one
// while another goroutine queues a copy wraps [ErrInFlight]; both change nothing.
//
// Release of a registered slice waits for its copies, and unregisters it.
func (b Buffer) Release() error {
	s := b.slab
	if s == nil {
		return nil
	}
	if invariants.Enabled {
		defer s.pool.verify()
	}
	if s.registered {
		return b.unregister()
	}
	c := &s.pool.cache
	sh := c.lockShard()
	err := b.expire(sh)
	if err == nil {
		sh.takeBack(s, b.bytes)
	}
	sh.Unlock()
	if err != nil {
		return fmt.Errorf("transfer: Release of a %w", err)
	}
	if c.excessive.Load() && s.pool.gate.Enter() { // else Close frees it
		defer s.pool.gate.Leave()
		c.trim(context.Background())
	}
	return nil
}

// expire makes the handle stale. The shard is locked: Close either finds the slab there, or the
// buffer out.
func (b Buffer) expire(sh *shard) error {
	s := b.slab
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serial.Load() != b.serial {
		return fmt.Errorf("%s that was %w before", b, ErrReleased)
	}
	if s.queueing > 0 {
		return fmt.Errorf("%s while a copy is being queued: %w", b, ErrInFlight)
	}
	// Even if the pool is closed the handle is over.
	s.serial.Add(1)
	if sh.closed {
		return fmt.Errorf("%s: the pool of %s is %w", b, s.pool.dev.Name(), ErrClosed)
	}
	return nil
}
