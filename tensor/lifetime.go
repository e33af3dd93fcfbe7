package tensor

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Lifetime owns the tensors that were made with its context. Close releases those that were not
// kept. It may be used from several goroutines, except Reset. See [WithLifetime].
type Lifetime struct {
	outer *Lifetime
	ctx   context.Context // for the frees of Close

	mu     sync.Mutex
	newest *Tensor // of the list of tensors that it owns
	owned  int
	closed bool

	slots
	attached attached // the context of WithLifetime
}

// attached is a context whose tensors belong to a lifetime.
type attached struct {
	context.Context
	lifetime *Lifetime
}

// Value implements context.Context.
func (a *attached) Value(key any) any {
	if key == (lifetimeKey{}) {
		return a.lifetime
	}
	return a.Context.Value(key)
}

type lifetimeKey struct{}

// WithLifetime opens a lifetime. When it closes, it releases every tensor that any operation made
// with the returned context.
//
//	ctx, life := tensor.WithLifetime(ctx)
//	defer life.Close()
//	...
//	life.Keep(result)
//
// Lifetimes nest. A lifetime keeps its tensors reachable, so a lifetime that is never closed leaks
// them.
func WithLifetime(ctx context.Context) (context.Context, *Lifetime) {
	l := &Lifetime{outer: lifetimeOf(ctx), ctx: ctx}
	if ctx == nil {
		return nil, l
	}
	l.attached = attached{ctx, l}
	return &l.attached, l
}

// Group makes the lifetime allocate tensors in groups, each of which is two objects of the Go heap.
// The first group is for about the expected number of tensors, and each later one is twice as large
// as the one before; a group has 16 to 512 tensors.
//
// Group is for lifetimes that release nearly all the tensors that they own. The garbage collector
// finds a tensor that was kept and then dropped ([OnLeak]) only when no other tensor of its group
// is reachable. A live tensor keeps the memory of its group, about 300 bytes per tensor, from being
// freed. Group is called before the first tensor is made.
func (l *Lifetime) Group(expected int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group = min(max(expected, leastTensors), mostTensors)
}

// Made returns how many tensors were made in groups with the lifetime's context, since the last
// Reset.
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

// Attach returns a context whose tensors belong to l, instead of the lifetime that ctx has. A nil
// context stays nil, which operations refuse.
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

// Keep takes tensors out of the lifetime. They pass to the enclosing lifetime or, if there is none,
// to the caller. Tensors that the lifetime does not own are left alone.
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

// Close releases the tensors that the lifetime still owns. It is idempotent. Tensors that are made
// with its context afterwards pass to the enclosing lifetime. The spans of the frees have their
// parent in the context that WithLifetime was given.
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

// takeNewest closes the lifetime, and removes and returns a tensor that it still owns, or nil.
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

// unlink removes t, which l owns. The caller holds the lock.
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

// String returns text such as "lifetime of 3 tensors".
func (l *Lifetime) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("lifetime of %d tensors", l.owned)
}
