package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// A Release invalidates the handle by changing the slab's serial number, and moves the slab to the
// shard of the releasing processor. Get may have taken it from another shard, so a shard's share of
// a gauge can be negative. Release waits for copies only if the slice is registered, because then
// the caller needs its memory back.

// Release gives the buffer back. The pool reuses its memory when the copies that use it are done,
// so a buffer may be released as soon as they are queued. The error of a second Release wraps
// [ErrReleased], and that of a Release while another goroutine queues a copy wraps [ErrInFlight];
// both change nothing.
//
// Release of a registered slice waits for its copies and unregisters it.
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
	if c.excessive.Load() && s.pool.gate.Enter() { // otherwise Close frees it
		defer s.pool.gate.Leave()
		c.trim(context.Background())
	}
	return nil
}

// expire makes the handle stale. The shard is locked, so that Close finds the slab either in the
// shard or still out.
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
	// The handle ends even if the pool is closed.
	s.serial.Add(1)
	if sh.closed {
		return fmt.Errorf("%s: the pool of %s is %w", b, s.pool.dev.Name(), ErrClosed)
	}
	return nil
}
