package transfer

import (
	"context"
	"sync"
)

// Ahead are copies that are queued ahead of their use, such as a loader's of the next batches. Most
// observers want a copy when it is made; one that shows what a copy is for waits for its use with
// OnUse. Its methods may be called from any goroutine. A nil Ahead is of no copies.
type Ahead struct {
	queued context.Context

	mu      sync.Mutex // not held while the functions of OnUse are called
	used    context.Context
	waiting []func(context.Context)
}

type aheadKey struct{}

// WithAhead returns a context for copies that are queued ahead of their use, and these copies. A
// nil context is context.Background().
func WithAhead(ctx context.Context) (context.Context, *Ahead) {
	if ctx == nil {
		ctx = context.Background()
	}
	a := &Ahead{queued: ctx}
	return context.WithValue(ctx, aheadKey{}, a), a
}

// AheadOf returns the copies that ctx is for, if they are queued ahead of their use, and nil
// otherwise.
func AheadOf(ctx context.Context) *Ahead {
	if ctx == nil {
		return nil
	}
	a, _ := ctx.Value(aheadKey{}).(*Ahead)
	return a
}

// Use is for the caller of WithAhead, when the copies are used: ctx is the user's. A second Use
// does nothing.
func (a *Ahead) Use(ctx context.Context) {
	if a == nil || ctx == nil {
		return
	}
	a.mu.Lock()
	var waiting []func(context.Context)
	if a.used == nil {
		a.used = ctx
		waiting, a.waiting = a.waiting, nil
	}
	a.mu.Unlock()
	for _, f := range waiting {
		f(ctx)
	}
}

// Unused is Use for copies that are never used, with the context that WithAhead was called with.
func (a *Ahead) Unused() {
	if a != nil {
		a.Use(a.queued)
	}
}

// String is "copies ahead of their use", or "copies that are used".
func (a *Ahead) String() string {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.used == nil {
			return "copies ahead of their use"
		}
	}
	return "copies that are used"
}

// OnUse calls f with the context of the use: by Use, or at once if the copies are used already.
func (a *Ahead) OnUse(f func(context.Context)) {
	if a == nil || f == nil {
		return
	}
	a.mu.Lock()
	used := a.used
	if used == nil {
		a.waiting = append(a.waiting, f)
	}
	a.mu.Unlock()
	if used != nil {
		f(used)
	}
}
