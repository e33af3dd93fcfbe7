package memcache

import "context"

// carried is what a context carries for the caches. It is never changed. One value holds everything, so that
// a request looks up one key.
type carried struct {
	scope *Scope  // the innermost one, of any cache
	pools []*Pool // at most one of each cache
}

type carriedKey struct{}

// carriedOf is what ctx carries, never nil.
func carriedOf(ctx context.Context) *carried {
	if ctx == nil {
		return &carried{}
	}
	if v, ok := ctx.Value(carriedKey{}).(*carried); ok {
		return v
	}
	return &carried{}
}

// in returns a context that carries v. A nil context stays nil, which Alloc refuses.
func (v *carried) in(ctx context.Context) context.Context {
	if ctx == nil {
		return nil
	}
	return context.WithValue(ctx, carriedKey{}, v)
}

// pool is the pool of c, or nil.
func (v *carried) pool(c *Cache) *Pool {
	for _, p := range v.pools {
		if p.cache == c {
			return p
		}
	}
	return nil
}
