package memcache

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Private pools share nothing with the default pool but the driver: each has free lists of its own in every arena that has a
// segment of it (package placement), and each segment names the lists that its chunks return to. So a pool costs the requests
// outside of it nothing, not even a comparison on a free. The requests inside find their pool in the context.

// ErrReleased says that the private pool was released: it hands out no more blocks.
var ErrReleased = errors.New("private pool was released")

// PoolOptions configure a private pool.
type PoolOptions struct {
	// UseOnOOM lends the pool's free blocks to requests of the default pool, when the driver has no memory
	// for them. The pool is not grown for them.
	UseOnOOM bool
	// NoSplit hands out whole free blocks and segments only.
	NoSplit bool
}

// PoolID names a private pool in snapshots. The default pool's is zero. The first number is for the pools of
// captured graphs, which don't exist yet; the second counts the pools of [Cache.NewPool] from 1.
type PoolID [2]uint64

// Pool is a private pool (torch.cuda.MemPool): segments of its own, for blocks that must not share memory
// with those of other requests. It belongs to the one who made it, who ends it with Release. All methods may
// be called from any goroutine. The nil Pool stands for the default pool.
//
// A pool changes nothing for requests outside of it, unlike PyTorch, where entering one stops, on the whole
// device, the reuse of recorded blocks, the flush before an out-of-memory error, and empty_cache. The limits,
// the statistics and the peaks are the cache's, over all pools. Free segments of a pool that was not released
// stay: neither a flush nor garbage collection returns them, and only the pool's own requests return its
// oversize ones (MaxSplitSizeMB).
type Pool struct {
	cache *Cache
	place placement.Pool
}

// NewPool makes a private pool, which has no memory yet.
func (c *Cache) NewPool(options PoolOptions) (*Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("memcache: NewPool: %w: make pools before Close", ErrClosed)
	}
	c.lastPoolNumber++
	p := &Pool{cache: c, place: placement.Pool{ID: PoolID{0, c.lastPoolNumber}, NoSplit: options.NoSplit}}
	if options.UseOnOOM {
		c.oomPools = append(c.oomPools, p)
	}
	return p, nil
}

// idOf is the ID of a pool; zero for the default pool, nil.
func idOf(p *placement.Pool) PoolID {
	if p == nil {
		return PoolID{}
	}
	return p.ID
}

// ID returns the pool's ID; zero for the nil Pool.
func (p *Pool) ID() PoolID {
	if p == nil {
		return PoolID{}
	}
	return p.place.ID
}

// String names the pool by its ID.
func (p *Pool) String() string {
	if p == nil {
		return "default pool"
	}
	return fmt.Sprintf("private pool %d", p.place.ID[1])
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
		for _, o := range within.state.pools {
			if o.cache != c {
				pools = append(pools, o)
			}
		}
		within.state.pools = pools
	})
}

// Release ends the pool: Alloc with its context fails with [ErrReleased], and it lends nothing any more. Blocks
// that are in use stay valid. Free segments, and others once their blocks are freed, return to the driver with
// the next EmptyCache, of the pool or of the cache, or when a request finds no memory. Release doesn't wait,
// and is idempotent.
func (p *Pool) Release() error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.Release: %w: the pool is nil; it must come from NewPool", ErrInvalid)
	}
	c := p.cache
	c.lockAll()
	defer c.unlockAll()
	// With all shards locked, a request has either taken its block already or finds the pool released.
	p.place.Released = true
	c.oomPools = slices.DeleteFunc(c.oomPools, func(o *Pool) bool { return o == p })
	return nil
}

// EmptyCache waits for the frees that are pending and returns the free segments of this pool alone to the
// driver. The pool must have been released: before, it is an error that wraps [ErrInvalid], and nothing is
// returned.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.EmptyCache: %w: the pool is nil; Cache.EmptyCache is for the default pool", ErrInvalid)
	}
	p.cache.mu.Lock()
	released := p.isReleased()
	p.cache.mu.Unlock()
	if !released {
		return fmt.Errorf("memcache: EmptyCache of %s: %w: its segments stay until Release", p, ErrInvalid)
	}
	ctx, op := p.cache.start(ctx, OpEmptyCache)
	err := p.cache.emptyCache(ctx, p)
	p.cache.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}

// isReleased reports whether the pool was released; the default pool, nil, never is. Cache.mu or a shard's lock is held.
func (p *Pool) isReleased() bool { return p != nil && p.place.Released }

// releasedPools are the released pools that still have segments, by number: the order in which a flush goes through them.
// All shards are locked.
func (c *Cache) releasedPools() []*placement.Pool {
	var pools []*placement.Pool
	for _, s := range c.table.Load().list {
		for p := range s.arena.Pools() {
			if p.Released {
				pools = append(pools, p)
			}
		}
	}
	slices.SortFunc(pools, func(a, b *placement.Pool) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return slices.Compact(pools)
}
