package transfer

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
)

// Config.MaxBytes limits what the driver holds, not what the pool owns: memory counts while it is
// being allocated or freed, and after the driver refused to free it. So the sum changes under one
// lock, pinned.mu, before an allocation and after a free; the driver calls themselves are too slow
// to be made under it. If pending frees would bring a Get below the limit, it waits for them
// without the lock.

// LimitError is the error of a Get that needs more than Config.MaxBytes allows even after the
// cached memory was freed. It wraps [ErrLimit].
type LimitError struct {
	// Requested is the size in bytes of the pinned allocation that was not made.
	Requested int64
	// Allocated is the bytes that were held or being allocated for the pool, Limit its MaxBytes.
	Allocated, Limit int64
}

// Error returns a text with these sizes.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%v of the pool's pinned memory: %s more than the %s held would be over %s; Release buffers, or raise MaxBytes",
		ErrLimit, humanize.IBytes(uint64(e.Requested)), humanize.IBytes(uint64(e.Allocated)), humanize.IBytes(uint64(e.Limit)))
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// admit reserves size bytes below the limit before the driver allocates them. If pending frees
// would make them fit, it waits for those.
func (p *pinned) admit(ctx context.Context, size int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		held := p.held.Current + p.allocating
		if p.limit == 0 || size <= p.limit-held {
			p.allocating += size
			return nil
		}
		// Waiting helps only if the pending frees are large enough.
		if size > p.limit-held+p.freeing {
			return &LimitError{Requested: size, Allocated: held, Limit: p.limit}
		}
		if err := p.awaitFree(ctx); err != nil {
			return err
		}
	}
}

// awaitFree waits until the driver has freed something. p.mu is held, except during the wait.
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
