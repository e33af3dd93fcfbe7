package transfer

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
)

// Config.MaxBytes is a limit of what the driver holds, not of what the pool has: memory that is
// being freed, that the driver refused to free, or that it is about to allocate counts. So the sum
// is changed under one lock, pinned.mu, before an allocation and after a free, around driver calls
// that take longer than any lock. A Get that finds no room waits, without that lock, while memory
// on its way back would make room.

// LimitError is what Get returns when it needs more than Config.MaxBytes allows, after the cache
// was given back. It wraps [ErrLimit].
type LimitError struct {
	// Requested is the size in bytes of the pinned allocation that was not made.
	Requested int64
	// Allocated is what the pool held, in bytes, and Limit what it may hold.
	Allocated, Limit int64
}

// Error gives the numbers.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%v of the pool's pinned memory: %s more than the %s held would be over %s; Release buffers, or raise MaxBytes",
		ErrLimit, humanize.IBytes(uint64(e.Requested)), humanize.IBytes(uint64(e.Allocated)), humanize.IBytes(uint64(e.Limit)))
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// admit takes size bytes off the limit, before the driver is asked for them. It waits where
// memory that the driver is freeing would make room.
func (p *pinned) admit(ctx context.Context, size int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		held := p.held.Current + p.allocating
		if p.limit == 0 || size <= p.limit-held {
			p.allocating += size
			return nil
		}
		// Waiting helps only if what is on its way to the driver makes enough room.
		if size > p.limit-held+p.freeing {
			return &LimitError{Requested: size, Allocated: held, Limit: p.limit}
		}
		if err := p.awaitFree(ctx); err != nil {
			return err
		}
	}
}

// awaitFree waits until the driver has freed something. The pool is locked, but not meanwhile.
func (p *pinned) awaitFree(ctx context.Context) error {
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	freed := p.freed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
