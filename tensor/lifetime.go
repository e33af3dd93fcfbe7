package tensor

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Lifetime owns the tensors that were made with its context, and releases at Close what was not kept. It may
// be used from several goroutines, but for Reset. See [WithLifetime].
type Lifetime struct {
	outer *Lifetime
	ctx   context.Context // of the frees of Close

	mu     sync.Mutex
	newest *Tensor // of those that it owns, a list
	owned  int
	closed bool

	slots
	attached attached // the first context
}

// attached is a context whose tensors belong to a lifetime.
type attached struct {
	context.Context
	lifetime *Lifetime
}

// Value is context.Context's.
func (a *attached) Value(key any) any {
	if key == (lifetimeKey{}) {
		return a.lifetime
	}
	return a.Context.Value(key)
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
	l := &Lifetime{outer: lifetimeOf(ctx), ctx: ctx}
	if ctx == nil {
		return nil, l
	}
	l.attached = attached{ctx, l}
	return &l.attached, l
}

// Group lets the lifetime make tensors in groups, for each of which the Go heap has two objects: a first one of about as many as are expected, 16 to 512,
// and then each of twice as many as the one before. It is for lifetimes that release nearly all that they own: the garbage collector finds a tensor that
// was kept and then dropped ([OnLeak]) only when no other one of its group can be reached, and a tensor that lives keeps the memory of
// its group's objects, about 300 bytes each, from being freed. It is called before the first tensor is made.
func (l *Lifetime) Group(expected int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group = min(max(expected, leastTensors), mostTensors)
}

// Made is how many tensors were made with the lifetime's context, since Reset if there was one, if they are made in groups.
func (l *Lifetime) Made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
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
	return &attached{ctx, l}
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
		if t.none() || !l.remove(t) {
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
	var errs []error
	for t := l.takeNewest(); t != nil; t = l.takeNewest() {
		if err := t.ReleaseContext(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// takeNewest ends the lifetime, and takes out a tensor that it still owns, if there is one.
func (l *Lifetime) takeNewest() *Tensor {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	t := l.newest
	if t != nil {
		l.unlink(t)
	}
	return t
}

func (l *Lifetime) add(t *Tensor) {
	for ; l != nil; l = l.outer {
		l.mu.Lock()
		if !l.closed {
			if t.older = l.newest; t.older != nil {
				t.older.newer = t
			}
			l.newest = t
			l.owned++
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
	if t.owner.Load() != l {
		return false
	}
	l.unlink(t)
	return true
}

// unlink takes t, which l owns, out. The caller holds the lock.
func (l *Lifetime) unlink(t *Tensor) {
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		l.newest = t.older
	}
	if t.older != nil {
		t.older.newer = t.newer
	}
	t.older, t.newer = nil, nil
	l.owned--
	t.owner.Store(nil)
}

// String is such as "lifetime of 3 tensors".
func (l *Lifetime) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("lifetime of %d tensors", l.owned)
}
