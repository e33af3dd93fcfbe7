package memcache

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// ctxState is what a context carries for the caches: the scope, the private pools and the label of requests. It is never
// changed, but replaced in a new context. One value holds everything, so that a request looks up one key: a look-up in a
// context costs some nanoseconds for each value that was put on top.
type ctxState struct {
	scope *Scope   // the innermost one, of any cache
	label *Label   // nil: none
	work  *Label   // label, with CategoryWorkspace; nil: none
	rare  *ctxRare // nil: nothing of it
}

// ctxRare is what few contexts carry. It is never changed either.
type ctxRare struct {
	pools []*Pool // at most one of each cache; a program has few caches
	tasks []*task // at most one of each cache: see Cache.Wait
}

// noRare is of contexts that carry nothing rare.
var noRare ctxRare

// rarely returns what is rare, never nil.
func (state *ctxState) rarely() *ctxRare { return cmp.Or(state.rare, &noRare) }

// ctxKey is the key of the ctxState in a context.
type ctxKey struct{}

// noState is of contexts that carry nothing.
var noState ctxState

// ctxStateOf returns what ctx carries, never nil.
func ctxStateOf(ctx context.Context) *ctxState {
	if ctx == nil {
		return &noState
	}
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		return state
	}
	return &noState
}

// carrier is a context that carries a state, in one allocation.
type carrier struct {
	context.Context
	state ctxState
	label Label // what state.label points at, if the context has a label of its own
	work  Label // and what state.work does
}

// carry returns a context with what ctx carries, changed by change. It stands in the place of a carrier, whose state it
// replaces whole, rather than on top of it: the layers of a model don't make look-ups slower. A nil context stays nil, which
// Alloc refuses.
func carry(ctx context.Context, change func(*carrier)) context.Context {
	if ctx == nil {
		return nil
	}
	c := new(carrier)
	c.onto(ctx)
	change(c)
	return c
}

// onto makes a new carrier carry what ctx carries.
func (c *carrier) onto(ctx context.Context) {
	c.Context, c.state = ctx, *ctxStateOf(ctx)
	if replaced, ok := ctx.(*carrier); ok {
		c.Context = replaced.Context
	}
}

// setLabel gives a new carrier a label of its own. The labels of contexts are never changed: blocks point at them.
func (c *carrier) setLabel(l Label) {
	c.label, c.state.label = l, &c.label
	c.work, c.state.work = l, &c.work
	c.work.Category = CategoryWorkspace
}

// workspace is the label of a context that has none, for workspaces.
var workspace = Label{Category: CategoryWorkspace}

// Value is context.Context's.
func (c *carrier) Value(key any) any {
	if key == (ctxKey{}) {
		return &c.state
	}
	return c.Context.Value(key)
}

// poolOf returns the pool of c that the context chose, or nil for the default pool.
func (state *ctxState) poolOf(c *Cache) *Pool {
	if state.rare == nil {
		return nil
	}
	for _, p := range state.rare.pools {
		if p.cache == c {
			return p
		}
	}
	return nil
}

// WithModule returns a context whose allocations belong to a part, by its name, of the module that ctx names.
func WithModule(ctx context.Context, name string) context.Context {
	return relabel(ctx, func(l *Label) {
		if l.Module != "" && name != "" {
			l.Module = ModulePath(l.Module) + "."
		}
		l.Module += name
	})
}

// WithCategory returns a context whose allocations are of a category.
func WithCategory(ctx context.Context, c Category) context.Context {
	return relabel(ctx, func(l *Label) { l.Category = c })
}

// WithStep returns a context whose allocations belong to a training step; 0: to none.
func WithStep(ctx context.Context, step int64) context.Context {
	return relabel(ctx, func(l *Label) { l.Step = step })
}

// WithTag returns a context whose allocations have a pair of the program's own, in place of an earlier one with the same
// key. Line ends in key and value, and each "=" in the key, become spaces.
func WithTag(ctx context.Context, key, value string) context.Context {
	key = tagKey(key)
	value = strings.ReplaceAll(value, "\n", " ")
	return relabel(ctx, func(l *Label) {
		var tags []string
		if l.Tags != "" {
			tags = strings.Split(l.Tags, "\n")
		}
		tags = slices.DeleteFunc(tags, func(t string) bool { return strings.HasPrefix(t, key) })
		tags = append(tags, key+value)
		slices.Sort(tags)
		l.Tags = strings.Join(tags, "\n")
	})
}

// WithLabel returns a context whose allocations have the label l, whatever label ctx has.
func WithLabel(ctx context.Context, l Label) context.Context {
	return relabel(ctx, func(own *Label) { *own = l })
}

// LabelContexts makes contexts with labels as [WithLabel] does, in groups of sixteen and more: for a program that makes many of them, as a training
// step does one for each module. They may be used from any goroutine, LabelContexts itself by one. The zero value is ready.
type LabelContexts struct {
	fresh []carrier
	group int // how many were made last, or are to be made next
	made  int
}

// Expect announces how many contexts are about to be made, so that they are one object of the Go heap. Of
// more than 65,536 only so many are.
func (c *LabelContexts) Expect(n int) { c.group = min(max(n, 0), 1<<16) }

// Made is how many contexts were made.
func (c *LabelContexts) Made() int { return c.made }

// With returns a context whose allocations have the label l, whatever label ctx has.
func (c *LabelContexts) With(ctx context.Context, l Label) context.Context {
	if ctx == nil {
		return nil
	}
	if len(c.fresh) == 0 {
		if c.made > 0 || c.group == 0 {
			c.group = max(16, min(2*c.group, 512))
		}
		c.fresh = make([]carrier, c.group)
	}
	c.made++
	to := &c.fresh[0]
	c.fresh = c.fresh[1:]
	to.onto(ctx)
	to.setLabel(l)
	return to
}

// LabelOf is the label that ctx gives to allocations.
func LabelOf(ctx context.Context) Label { return ctxStateOf(ctx).label.value() }

// relabel returns a context with a label of its own.
func relabel(ctx context.Context, change func(*Label)) context.Context {
	return carry(ctx, func(c *carrier) {
		l := c.state.label.value()
		change(&l)
		c.setLabel(l)
	})
}

// Context returns a context with which Alloc takes memory from the pool (torch.cuda.use_mem_pool), on any
// stream and goroutine. Free needs no context: each block returns to its own pool. Inside of each other the
// innermost pool counts. A context carries one pool of each cache, and a cache passes over those of other
// caches. The nil Pool's Context returns ctx as it is. [Cache.WithoutPool] leaves the pool again.
func (p *Pool) Context(ctx context.Context) context.Context {
	if p == nil {
		return ctx
	}
	return p.cache.withPool(ctx, p)
}

// WithoutPool returns a context with which Alloc takes memory from the default pool, whatever pool of this
// cache ctx carries.
func (c *Cache) WithoutPool(ctx context.Context) context.Context { return c.withPool(ctx, nil) }

// PoolOf is the pool of this cache that Alloc takes memory from with the context; nil is the default pool.
func (c *Cache) PoolOf(ctx context.Context) *Pool { return ctxStateOf(ctx).poolOf(c) }

// withPool returns a context with p in place of the pool of c that ctx carries; nil: with none.
func (c *Cache) withPool(ctx context.Context, p *Pool) context.Context {
	// A context that is used with several caches keeps the pools of the others.
	return carry(ctx, func(within *carrier) {
		var pools []*Pool
		if p != nil {
			pools = append(pools, p)
		}
		rare := *within.state.rarely()
		for _, o := range rare.pools {
			if o.cache != c {
				pools = append(pools, o)
			}
		}
		rare.pools = pools
		within.state.rare = &rare
	})
}
