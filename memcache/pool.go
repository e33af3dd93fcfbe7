package memcache

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Private pools share nothing with the default pool but the driver: each has free lists of its own in every arena that has a
// segment of it (package placement), and each segment names the lists that its chunks return to. So a pool costs the requests
// outside of it nothing, not even a comparison on a free. The requests inside find their pool in the context.

// PoolOptions configure a private pool.
type PoolOptions struct {
	// UseOnOOM lends the pool's free blocks to requests of the default pool, when the driver has no memory
	// for them. The pool is not grown for them.
	UseOnOOM bool
	// NoSplit hands out whole free blocks and segments only.
	NoSplit bool
}

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
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	if c.shards.closed {
		return nil, fmt.Errorf("memcache: NewPool: %w: make pools before Close", ErrClosed)
	}
	c.lastPoolNumber++
	p := &Pool{cache: c, place: placement.Pool{ID: PoolID{0, c.lastPoolNumber}, NoSplit: options.NoSplit}}
	if options.UseOnOOM {
		c.grower.oomPools = append(c.grower.oomPools, &p.place)
	}
	return p, nil
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

// Release ends the pool: Alloc with its context fails with [ErrReleased], and it lends nothing any more. Blocks
// that are in use stay valid. Free segments, and others once their blocks are freed, return to the driver with
// the next EmptyCache, of the pool or of the cache, or when a request finds no memory. Release doesn't wait,
// and is idempotent.
func (p *Pool) Release() error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.Release: %w: the pool is nil; it must come from NewPool", ErrInvalid)
	}
	c := p.cache
	c.shards.lockAll()
	defer c.shards.unlockAll()
	// With all shards locked, a request has either taken its block already or finds the pool released.
	p.place.Released = true
	c.grower.oomPools = slices.DeleteFunc(c.grower.oomPools, func(o *placement.Pool) bool { return o == &p.place })
	return nil
}

// EmptyCache waits for the frees that are pending and returns the free segments of this pool alone to the
// driver. The pool must have been released: before, it is an error that wraps [ErrInvalid], and nothing is
// returned.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.EmptyCache: %w: the pool is nil; Cache.EmptyCache is for the default pool", ErrInvalid)
	}
	p.cache.shards.mu.Lock()
	released := p.place.Released
	p.cache.shards.mu.Unlock()
	if !released {
		return fmt.Errorf("memcache: EmptyCache of %s: %w: its segments stay until Release", p, ErrInvalid)
	}
	ctx, op := p.cache.reporter.start(ctx, OpEmptyCache)
	err := p.cache.grower.emptyCache(ctx, &p.place)
	p.cache.reporter.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}
