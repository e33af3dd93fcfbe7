package transfer

import (
	"context"
	"sync"
)

// Ahead stands for copies that are queued ahead of their use, such as a loader's copies of the next
// batches. Most observers record a copy when it is queued. An observer that attributes a copy to
// its use waits for that use with OnUse. Its methods may be called from any goroutine, and those of
// a nil Ahead do nothing.
type Ahead struct {
	queued context.Context

	mu      sync.Mutex // not held while the functions of OnUse are called
	used    context.Context
	waiting []func(context.Context)
}

type aheadKey struct{}

// WithAhead returns a context for copies that are queued ahead of their use, and the Ahead that
// stands for them. A nil ctx is context.Background().
func WithAhead(ctx context.Context) (context.Context, *Ahead) {
	if ctx == nil {
		ctx = context.Background()
	}
	a := &Ahead{queued: ctx}
	return context.WithValue(ctx, aheadKey{}, a), a
}

// AheadOf returns the Ahead of a context from WithAhead, and nil for other contexts.
func AheadOf(ctx context.Context) *Ahead {
	if ctx == nil {
		return nil
	}
	a, _ := ctx.Value(aheadKey{}).(*Ahead)
	return a
}

// Use reports that the copies are used; ctx is the user's context. The caller of WithAhead calls
// it. A second Use does nothing.
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

// Unused is Use for copies that are never used, with the context that was passed to WithAhead.
func (a *Ahead) Unused() {
	if a != nil {
		a.Use(a.queued)
	}
}

// String returns "copies ahead of their use" or "copies that are used".
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

// OnUse calls f with the context of the use: during Use, or at once if the copies are already used.
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
