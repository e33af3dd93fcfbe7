package memcache

import "context"

// ctxState is what a context carries for the caches: the scope, the private pools and the label of requests. It is never
// changed, but replaced in a new context. One value holds everything, so that a request looks up one key: a look-up in a
// context costs some nanoseconds for each value that was put on top.
type ctxState struct {
	scope *Scope  // the innermost one, of any cache
	pools []*Pool // at most one of each cache; a program has few caches
	label *Label  // nil: none
}

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
}

// carry returns a context with what ctx carries, changed by change. It stands in the place of a carrier, whose state it
// replaces whole, rather than on top of it: the layers of a model don't make look-ups slower. A nil context stays nil, which
// Alloc refuses.
func carry(ctx context.Context, change func(*carrier)) context.Context {
	if ctx == nil {
		return nil
	}
	c := &carrier{Context: ctx, state: *ctxStateOf(ctx)}
	if replaced, ok := ctx.(*carrier); ok {
		c.Context = replaced.Context
	}
	change(c)
	return c
}

// Value is context.Context's.
func (c *carrier) Value(key any) any {
	if key == (ctxKey{}) {
		return &c.state
	}
	return c.Context.Value(key)
}

// poolOf returns the pool of c that the context chose, or nil for the default pool.
func (state *ctxState) poolOf(c *Cache) *Pool {
	for _, p := range state.pools {
		if p.cache == c {
			return p
		}
	}
	return nil
}
