package tensor

import (
	"context"
	"errors"
	"sync"
)

// Lifetime owns the tensors that were made with its context, and releases at Close what was not kept. It may
// be used from several goroutines. See [WithLifetime].
type Lifetime struct {
	outer *Lifetime
	ctx   context.Context // of the frees of Close

	mu     sync.Mutex
	owned  map[*Tensor]struct{}
	closed bool
}

type lifetimeKey struct{}

// WithLifetime opens a lifetime: every tensor made with the returned context, by whatever operation, is released
// when it closes.
//
//	ctx, life := tensor.WithLifetime(ctx)
//	defer life.Close()
//	...
//	life.Keep(result)
//
// Lifetimes nest. A lifetime keeps its tensors reachable, so one that is never closed leaks them.
func WithLifetime(ctx context.Context) (context.Context, *Lifetime) {
	l := &Lifetime{outer: lifetimeOf(ctx), ctx: ctx, owned: make(map[*Tensor]struct{})}
	return l.Attach(ctx), l
}

// Detached returns a context whose tensors belong to no lifetime.
func Detached(ctx context.Context) context.Context {
	if lifetimeOf(ctx) == nil {
		return ctx
	}
	return (*Lifetime)(nil).Attach(ctx)
}

// Attach returns a context whose tensors belong to l, whatever lifetime ctx has. A nil context stays nil, which
// operations refuse.
func (l *Lifetime) Attach(ctx context.Context) context.Context {
	if ctx == nil {
		return nil
	}
	return context.WithValue(ctx, lifetimeKey{}, l)
}

func lifetimeOf(ctx context.Context) *Lifetime {
	if ctx == nil {
		return nil
	}
	l, _ := ctx.Value(lifetimeKey{}).(*Lifetime)
	return l
}

// Keep takes tensors out of the lifetime. They pass to the lifetime around it, or, if there is none, to the
// caller. Tensors that the lifetime does not own are left alone.
func (l *Lifetime) Keep(ts ...*Tensor) {
	for _, t := range ts {
		if t == nil || !l.remove(t) {
			continue
		}
		if l.outer != nil {
			l.outer.add(t)
		}
	}
}

// Close releases what the lifetime still owns. It is idempotent. Tensors made with its context afterwards
// pass to the lifetime around it. The spans of the frees have their parent in the context that WithLifetime was given.
func (l *Lifetime) Close() error { return l.CloseContext(l.ctx) }

// CloseContext is Close; the spans of the frees have their parent in ctx.
func (l *Lifetime) CloseContext(ctx context.Context) error {
	l.mu.Lock()
	owned := l.owned
	l.owned, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for t := range owned {
		errs = append(errs, t.ReleaseContext(ctx))
	}
	return errors.Join(errs...)
}

func (l *Lifetime) add(t *Tensor) {
	for ; l != nil; l = l.outer {
		l.mu.Lock()
		if !l.closed {
			l.owned[t] = struct{}{}
			t.owner.Store(l)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// remove reports whether the lifetime owned t.
func (l *Lifetime) remove(t *Tensor) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.owned[t]
	delete(l.owned, t)
	return ok
}
