package transfer

import (
	"context"
	"errors"
	"fmt"
)

// Buffer is pinned host memory that a [Pool] handed out. It is idle, or in flight while copies that
// use it are not done, and it ends with Release.
//
// A Buffer is a small value; its copies are the same buffer, and all are stale after Release, which
// every method says. The zero Buffer has 0 bytes, is always idle, and its Release does nothing.
//
// Its methods may be called from any goroutine, but its bytes belong to one at a time.
type Buffer struct {
	slab   *slab // nil if the buffer is empty
	serial uint64
	bytes  int64
}

// Len is the size in bytes that Get was asked for.
func (b Buffer) Len() int { return int(b.bytes) }

// IsZero reports whether the buffer is the empty one.
func (b Buffer) IsZero() bool { return b.slab == nil }

// String is "buffer of N bytes".
func (b Buffer) String() string { return fmt.Sprintf("buffer of %d bytes", b.bytes) }

// memory is the buffer's bytes, whatever its state.
func (b Buffer) memory() []byte {
	if b.slab == nil {
		return nil
	}
	return b.slab.mem[:b.bytes:b.bytes]
}

// Bytes is the buffer's memory. It is nil while a copy is in flight, also one that only reads, and
// after Release; [Buffer.Check] says which. The slice must not be used once a copy is queued, until
// that is done, and never after Release.
func (b Buffer) Bytes() []byte {
	if b.slab == nil || b.Check() != nil {
		return nil
	}
	return b.memory()
}

// Check returns nil if the host may touch the buffer: if all its copies are done. Otherwise the
// error wraps [ErrInFlight] or [ErrReleased], or it is the device's own. It never waits.
func (b Buffer) Check() error {
	if b.slab == nil {
		return nil
	}
	b.slab.mu.Lock()
	defer b.slab.mu.Unlock()
	return b.check()
}

// stale says why the handle is no buffer any more. The slab is locked.
func (b Buffer) stale() error {
	if b.slab.serial.Load() != b.serial {
		return fmt.Errorf("%s that was %w: Get another", b, ErrReleased)
	}
	if b.slab.pool.closed.Load() {
		return fmt.Errorf("%s: the pool of %s is %w", b, b.slab.pool.dev.Name(), ErrClosed)
	}
	return nil
}

// check is Check. The slab is locked. It drops the uses that it finds done, so that the next Check
// asks the driver about the first that is not, and about none before it.
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

// taintedError is the error of a tainted buffer.
func (b Buffer) taintedError() error {
	return fmt.Errorf("a %s is %w, and nothing says until when: Release it and Get another", b, ErrInFlight)
}

// inFlightError is the error of a buffer that a copy uses.
func (b Buffer) inFlightError() error {
	return fmt.Errorf("transfer: a %s is %w: Wait for its copies first", b, ErrInFlight)
}

// Wait waits until all copies that use the buffer are done. Cancelling ctx ends the waiting, not
// the copies. After a copy that was queued, but returned an error as no event could be recorded
// after it, there is nothing to wait for: the error wraps [ErrInFlight], as it does while another
// goroutine is queueing a copy.
func (b Buffer) Wait(ctx context.Context) error {
	if ctx == nil {
		return checkContext("Wait", ctx)
	}
	for b.slab != nil {
		b.slab.mu.Lock()
		err := b.check()
		var end *completion
		if errors.Is(err, ErrInFlight) && len(b.slab.uses) > 0 { // of a stale handle the uses are another's
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
