package memcache

import "context"

// carried is what a context carries for the caches. It is never changed. One value holds everything, so that
// a request looks up one key.
type ctxState struct {
	scope *Scope  // the innermost one, of any cache
	pools []*Pool // at most one of each cache
}

type ctxKey struct{}

// carriedOf is what ctx carries, never nil.
func ctxStateOf(ctx context.Context) *ctxState {
	if ctx == nil {
		return &ctxState{}
	}
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		return state
	}
	return &ctxState{}
}

// in returns a context that carries v. A nil context stays nil, which Alloc refuses.
func (state *ctxState) attachTo(ctx context.Context) context.Context {
	if ctx == nil {
		return nil
	}
	return context.WithValue(ctx, ctxKey{}, state)
}

// pool is the pool of c, or nil.
func (state *ctxState) poolOf(c *Cache) *Pool {
	for _, p := range state.pools {
		if p.cache == c {
			return p
		}
	}
	return nil
}
