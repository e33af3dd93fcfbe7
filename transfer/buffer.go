package transfer

import (
	"context"
	"errors"
	"fmt"
)

// Buffer is pinned host memory of a [Pool], from Get to Release. It is in flight while a copy that
// uses it is pending, and idle otherwise.
//
// A Buffer is a small value. Its Go copies are the same buffer, and after Release all of them are
// stale: access through them is an error. The zero Buffer has 0 bytes, is always idle, and its
// Release does nothing.
//
// Its methods may be called from any goroutine, but its bytes belong to one goroutine at a time.
type Buffer struct {
	slab   *slab // nil if the buffer is empty
	serial uint64
	bytes  int64
}

// Len returns the size in bytes that was passed to Get.
func (b Buffer) Len() int { return int(b.bytes) }

// IsZero reports whether the buffer is the empty one.
func (b Buffer) IsZero() bool { return b.slab == nil }

// String returns "buffer of N bytes".
func (b Buffer) String() string { return fmt.Sprintf("buffer of %d bytes", b.bytes) }

// memory returns the buffer's bytes in any state.
func (b Buffer) memory() []byte {
	if b.slab == nil {
		return nil
	}
	return b.slab.mem[:b.bytes:b.bytes]
}

// Bytes returns the buffer's memory. It returns nil after Release and while a copy is in flight,
// even a copy that only reads; [Buffer.Check] returns the reason. The slice must not be used from
// the moment when a copy is queued until it is done, nor after Release.
func (b Buffer) Bytes() []byte {
	if b.slab == nil || b.Check() != nil {
		return nil
	}
	return b.memory()
}

// Check returns nil if the host may touch the buffer, because all its copies are done. Otherwise
// the error wraps [ErrInFlight], [ErrReleased] or [ErrClosed], or it is the device's own. Check
// never waits.
func (b Buffer) Check() error {
	if b.slab == nil {
		return nil
	}
	b.slab.mu.Lock()
	defer b.slab.mu.Unlock()
	return b.check()
}

// stale returns an error if the handle is released or its pool closed. The slab is locked.
func (b Buffer) stale() error {
	if b.slab.serial.Load() != b.serial {
		return fmt.Errorf("%s that was %w: Get another", b, ErrReleased)
	}
	if b.slab.pool.closed.Load() {
		return fmt.Errorf("%s: the pool of %s is %w", b, b.slab.pool.dev.Name(), ErrClosed)
	}
	return nil
}

// check is Check. The slab is locked. check removes the uses that it finds done, so that the next
// one begins its queries at the first pending use.
func (b Buffer) check() error {
	if err := b.stale(); err != nil {
		return fmt.Errorf("transfer: a %w", err)
	}
	s := b.slab
	for i, u := range s.uses {
		done, err := u.last.done()
		if err != nil {
			return fmt.Errorf("transfer: a %s: %w", b, err)
		}
		if !done {
			s.uses = append(s.uses[:0], s.uses[i:]...)
			return b.inFlightError()
		}
	}
	s.uses = s.uses[:0]
	if s.queueing > 0 {
		return b.inFlightError()
	}
	if s.tainted {
		return fmt.Errorf("transfer: %w", b.taintedError())
	}
	return nil
}

func (b Buffer) taintedError() error {
	return fmt.Errorf("a %s is %w, and it is unknown until when: Release it and Get another", b, ErrInFlight)
}

func (b Buffer) inFlightError() error {
	return fmt.Errorf("transfer: a %s is %w: Wait for its copies first", b, ErrInFlight)
}

// Wait waits until all copies that use the buffer are done. Cancelling ctx ends the waiting, not
// the copies. The error wraps [ErrInFlight] while another goroutine is queueing a copy, and also if
// a copy was queued but no event could be recorded after it, because then there is nothing to wait
// for.
func (b Buffer) Wait(ctx context.Context) error {
	if ctx == nil {
		return checkContext("Wait", ctx)
	}
	for b.slab != nil {
		b.slab.mu.Lock()
		err := b.check()
		var end *completion
		if errors.Is(err, ErrInFlight) && len(b.slab.uses) > 0 { // not a new owner's uses
			end = b.slab.uses[0].last
		}
		b.slab.mu.Unlock()
		if end == nil {
			return err
		}
		if err := end.wait(ctx); err != nil {
			return fmt.Errorf("transfer: waiting for a %s: %w", b, err)
		}
	}
	return nil
}
