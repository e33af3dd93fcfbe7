package memcache

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// ctxState is what a context carries for the caches: the scope, the private pools and the label of
// requests. It is immutable; a new context gets a new one. All of it is one value, so that a
// request looks up one key: a look-up costs some nanoseconds for each context that wraps the value.
type ctxState struct {
	scope *Scope   // the innermost one, of any cache
	label *Label   // nil: none
	work  *Label   // label with CategoryWorkspace; nil: none
	rare  *ctxRare // nil: empty
}

// ctxRare is the part that few contexts carry. It is immutable, too.
type ctxRare struct {
	pools []*Pool // at most one for each cache; a program uses few caches
	tasks []*task // at most one for each cache: see Cache.Wait
}

// noRare is the empty ctxRare.
var noRare ctxRare

// rarely returns state.rare, or an empty ctxRare instead of nil.
func (state *ctxState) rarely() *ctxRare { return cmp.Or(state.rare, &noRare) }

// ctxKey is the key of the ctxState in a context.
type ctxKey struct{}

// noState is the state of contexts that carry nothing.
var noState ctxState

// ctxStateOf returns the state that ctx carries, or an empty one instead of nil.
func ctxStateOf(ctx context.Context) *ctxState {
	if ctx == nil {
		return &noState
	}
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		return state
	}
	return &noState
}

// carrier is a context with its state, in one Go allocation.
type carrier struct {
	context.Context
	state ctxState
	label Label // target of state.label, if the context has a label of its own
	work  Label // target of state.work, likewise
}

// carry returns a context with the state of ctx, changed by change. If ctx is a carrier, the new
// one replaces it instead of wrapping it, so that look-ups do not get slower with each layer of a
// model. A nil context stays nil, and Alloc refuses it.
func carry(ctx context.Context, change func(*carrier)) context.Context {
	if ctx == nil {
		return nil
	}
	c := new(carrier)
	c.onto(ctx)
	change(c)
	return c
}

// onto gives a new carrier the state of ctx.
func (c *carrier) onto(ctx context.Context) {
	c.Context, c.state = ctx, *ctxStateOf(ctx)
	if replaced, ok := ctx.(*carrier); ok {
		c.Context = replaced.Context
	}
}

// setLabel gives a new carrier a label of its own. The labels of contexts are never changed,
// because blocks point to them.
func (c *carrier) setLabel(l Label) {
	c.label, c.state.label = l, &c.label
	c.work, c.state.work = l, &c.work
	c.work.Category = CategoryWorkspace
}

// workspace is the label of workspaces whose context has no label.
var workspace = Label{Category: CategoryWorkspace}

// Value implements context.Context.
func (c *carrier) Value(key any) any {
	if key == (ctxKey{}) {
		return &c.state
	}
	return c.Context.Value(key)
}

// poolOf returns the pool of c that the context selects, or nil for the default pool.
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

// WithModule returns a context whose allocations belong to the part called name of the module in
// ctx's label.
func WithModule(ctx context.Context, name string) context.Context {
	return relabel(ctx, func(l *Label) {
		if l.Module != "" && name != "" {
			l.Module = ModulePath(l.Module) + "."
		}
		l.Module += name
	})
}

// WithCategory returns a context whose allocations have the category c.
func WithCategory(ctx context.Context, c Category) context.Context {
	return relabel(ctx, func(l *Label) { l.Category = c })
}

// WithStep returns a context whose allocations belong to a training step; 0: to no step.
func WithStep(ctx context.Context, step int64) context.Context {
	return relabel(ctx, func(l *Label) { l.Step = step })
}

// WithTag returns a context whose allocations have a key and a value of the program's own. The
// value replaces an earlier one of the same key. Line ends in key and value, and each "=" in the
// key, become spaces.
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

// LabelContexts makes contexts with labels as [WithLabel] does, and allocates them in groups of
// sixteen or more. It is for programs that make many of them, such as one per module in each
// training step. Any goroutine may use the contexts; one goroutine at a time may use LabelContexts
// itself. The zero value is ready to use.
type LabelContexts struct {
	fresh []carrier
	group int // size of the last group, or of the next one if nothing was made
	made  int
}

// Expect announces that n contexts are about to be made, so that they become one object of the Go
// heap. Only the first 65,536 are covered.
func (c *LabelContexts) Expect(n int) { c.group = min(max(n, 0), 1<<16) }

// Made returns the number of contexts made.
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

// LabelOf returns the label that ctx gives to allocations.
func LabelOf(ctx context.Context) Label { return ctxStateOf(ctx).label.value() }

// relabel returns a context with a label of its own.
func relabel(ctx context.Context, change func(*Label)) context.Context {
	return carry(ctx, func(c *carrier) {
		l := c.state.label.value()
		change(&l)
		c.setLabel(l)
	})
}

// Context returns a context with which Alloc takes memory from the pool (torch.cuda.use_mem_pool),
// on any stream and goroutine. Free needs no such context: each block returns to its own pool. Of
// nested contexts the innermost pool applies. A context carries one pool per cache, and each cache
// ignores the pools of other caches. The nil Pool's Context returns ctx unchanged.
// [Cache.WithoutPool] selects the default pool again.
func (p *Pool) Context(ctx context.Context) context.Context {
	if p == nil {
		return ctx
	}
	return p.cache.withPool(ctx, p)
}

// WithoutPool returns a context with which Alloc takes memory from the default pool, whichever pool
// of this cache ctx carries.
func (c *Cache) WithoutPool(ctx context.Context) context.Context { return c.withPool(ctx, nil) }

// PoolOf returns the pool of this cache that Alloc with ctx takes memory from; nil is the default
// pool.
func (c *Cache) PoolOf(ctx context.Context) *Pool { return ctxStateOf(ctx).poolOf(c) }

// withPool returns a context with p instead of the pool of c that ctx carries; nil: without a pool
// of c.
func (c *Cache) withPool(ctx context.Context, p *Pool) context.Context {
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
