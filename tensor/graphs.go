package tensor

import (
	"context"
	"errors"
	"sync"

	"github.com/cistern-ml/cistern/memcache"
)

// reservedBy is the bytes of a pool's segments.
func reservedBy(pool *memcache.Pool, cache *memcache.Cache) (bytes int64) {
	for _, s := range cache.Snapshot().Segments {
		if s.PoolID == pool.ID() {
			bytes += s.TotalSize
		}
	}
	return bytes
}

// measured notes what capture allocates. Others that allocate from the cache meanwhile are taken for it.
func (g *Graph) measured(ctx context.Context, capture func() error) error {
	cache := g.rt.cache
	before := cache.Profile()
	_, scope := cache.Scope(ctx, "capture")
	defer func() {
		w, holders := scope.EndWindow(-1)
		m := &g.memory
		m.Allocations, m.Holdings = w.Allocations, holders.Profile().Since(before)
		for _, h := range m.Holdings {
			m.Held += h.Bytes
		}
	}()
	return capture()
}

// graphs are those of a runtime that are not closed. Its Close closes them.
type graphs struct {
	mu     sync.Mutex
	all    map[*Graph]struct{}
	pools  map[*memcache.Pool]*memcache.GraphPool // of all
	closed bool
}

// add is false when the runtime is closed.
func (l *graphs) add(g *Graph) bool {
	reserved := reservedBy(g.pool, g.rt.cache)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.all == nil {
		l.all, l.pools = make(map[*Graph]struct{}), make(map[*memcache.Pool]*memcache.GraphPool)
	}
	l.all[g] = struct{}{}
	p := l.pools[g.pool]
	if p == nil {
		p = &memcache.GraphPool{ID: g.pool.ID()}
		l.pools[g.pool] = p
	}
	g.memory.Pool = p
	p.Graphs.Add(1)
	p.Reserved.Store(reserved)
	return true
}

func (l *graphs) remove(g *Graph) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, g)
	l.leave(g)
}

// leave takes a graph from those of its pool. mu is held.
func (l *graphs) leave(g *Graph) {
	if p := g.memory.Pool; p != nil && p.Graphs.Add(-1) == 0 {
		delete(l.pools, g.pool)
	}
}

func (l *graphs) close() error {
	l.mu.Lock()
	all := l.all
	l.all, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for g := range all {
		errs = append(errs, g.end())
	}
	return errors.Join(errs...)
}
