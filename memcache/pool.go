package memcache

import (
	"context"
	"fmt"
	"slices"
	"sync"

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
	// StartSmall asks the driver for little at first: a request of 1 to 10 MiB that finds no room gets a segment that has 1 to 3 MiB to spare, or is as
	// large as all that the pool has for such requests, in place of one of 20 MiB (LargeSegmentSizeMB), which is the most. A pool for a few MiB, such as a
	// captured step's, reserves about twice what it holds at most. It changes nothing with Config.Exact and ExpandableSegments.
	StartSmall bool
	// ID is the pool's, {0, n} or {n, 0}, which no other pool has that was not released. Zero: the next {0, n}. With Config.Exact
	// the order in which several pools lend, or return their memory, depends on it as it does in PyTorch.
	ID PoolID
}

// Pool is a private pool (torch.cuda.MemPool): segments of its own, for blocks that must not share memory
// with those of other requests. It belongs to the one who made it, who ends it with Release. All methods may
// be called from any goroutine. The nil Pool stands for the default pool.
//
// A pool changes nothing for requests outside of it, unlike PyTorch, where entering one stops, on the whole
// device, the reuse of recorded blocks, the flush before an out-of-memory error, and empty_cache. The limits,
// the statistics and the peaks are the cache's, over all pools; [Pool.Stats] has the pool's own. Garbage
// collection and the flush of another pool's request leave the free segments of an unreleased pool alone.
// A request of the pool that finds no memory returns them to the driver and grows again, unless a captured
// stream has allocated or used its blocks: the graph uses its free memory. With [Config.Exact] they stay, as in
// PyTorch, and all that PyTorch stops is stopped while a pool is entered: see Enter.
type Pool struct {
	cache *Cache
	place placement.Pool
	lends bool

	graphs GraphPool
}

// NewPool makes a private pool, which has no memory yet.
func (c *Cache) NewPool(options PoolOptions) (*Pool, error) {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	if c.shards.closed {
		return nil, fmt.Errorf("memcache: NewPool: %w: make pools before Close", ErrClosed)
	}
	id := options.ID
	switch {
	case id == PoolID{}:
		for id[1] = c.lastPoolNumber + 1; c.openPools[id] != nil; {
			id[1]++
		}
		c.lastPoolNumber = id[1]
	case id[0] != 0 && id[1] != 0:
		return nil, fmt.Errorf("memcache: NewPool with the ID %v: %w: one of the numbers is 0", id, ErrInvalid)
	case c.openPools[id] != nil:
		return nil, fmt.Errorf("memcache: NewPool with the ID %v: %w: another pool has it until its Release", id, ErrInvalid)
	}
	p := &Pool{cache: c, lends: options.UseOnOOM, place: placement.Pool{ID: id, NoSplit: options.NoSplit, StartSmall: options.StartSmall, Tag: new(poolCounts)}}
	p.graphs.ID = id
	if c.openPools == nil {
		c.openPools = make(map[PoolID]*Pool)
	}
	c.openPools[id] = p
	if options.UseOnOOM {
		c.grower.lending.add(&p.place)
	}
	return p, nil
}

// Lends reports whether requests outside of the pool may get its free blocks ([PoolOptions.UseOnOOM]). Memory of graphs can't be in such a pool.
func (p *Pool) Lends() bool { return p != nil && p.lends }

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
	return fmt.Sprintf("private pool %d", p.place.ID[0]+p.place.ID[1])
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
	defer c.grower.waits.freed()
	c.shards.lockAll()
	defer c.shards.unlockAll()
	// With all shards locked, a request has either taken its block already or finds the pool released.
	if p.place.Released {
		return nil
	}
	p.place.Released = true
	delete(c.openPools, p.place.ID)
	c.grower.lending.remove(&p.place)
	c.shards.releasable.Store(c.shards.config().MaxCachedBytes != 0)
	if c.shards.config().Exact {
		c.grower.freeable.add(&p.place)
	}
	return nil
}

// Enter says that the program allocates from the pool from now on, in a capture or otherwise, until it calls leave
// (use_mem_pool, capture_begin). Which requests the pool serves is Context's affair. Enter is there for what PyTorch does meanwhile
// to all requests and frees of the device, and a cache with [Config.Exact] as well, while any pool is entered:
//   - no request looks whether pending frees are complete;
//   - a block that other streams were recorded on is put aside when it is freed, until the first request or EmptyCache with no pool entered:
//     it then waits for the streams that were recorded before, and for none that was recorded meanwhile;
//   - a request for which the driver has no memory fails without a flush and another try;
//   - EmptyCache waits for nothing, and returns only what released pools have free.
//
// Without Exact it changes nothing: a pool concerns its own requests alone. leave may be called more than once.
func (p *Pool) Enter() (leave func(), err error) {
	if p == nil {
		return nil, fmt.Errorf("memcache: Pool.Enter: %w: the pool is nil; it must come from NewPool", ErrInvalid)
	}
	all := &p.cache.shards
	all.mu.Lock()
	defer all.mu.Unlock()
	switch {
	case all.closed:
		return nil, fmt.Errorf("memcache: Enter of %s: %w", p, ErrClosed)
	case p.place.Released:
		return nil, fmt.Errorf("memcache: Enter of %s: %w", p, ErrReleased)
	case all.exact == nil:
		return func() {}, nil
	}
	all.exact.enter()
	return sync.OnceFunc(all.exact.leave), nil
}

// Snapshot is the pool's memory at this moment, by address (MemPool.snapshot): those of the cache's segments that have its ID. For the nil
// Pool there is none.
func (p *Pool) Snapshot() []SegmentSnapshot {
	if p == nil {
		return nil
	}
	all := &p.cache.shards
	all.lockAll()
	defer all.unlockAll()
	return slices.DeleteFunc(all.copySegments(), func(s SegmentSnapshot) bool { return s.PoolID != p.place.ID })
}

// EmptyCache waits for the frees that are pending and returns the free segments of this pool alone to the
// driver. A pool whose blocks a captured stream has allocated or used keeps them until Release, because
// graphs use its free memory, and with [Config.Exact] each pool does: EmptyCache is then an error that wraps
// [ErrInvalid].
func (p *Pool) EmptyCache(ctx context.Context) error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.EmptyCache: %w: the pool is nil; Cache.EmptyCache is for the default pool", ErrInvalid)
	}
	all := &p.cache.shards
	all.mu.Lock()
	exact := all.config().Exact && !p.place.Released
	pinned := p.place.Pinned()
	all.mu.Unlock()
	switch {
	case exact:
		return fmt.Errorf("memcache: EmptyCache of %s: %w: with Exact its segments stay until Release", p, ErrInvalid)
	case pinned:
		return fmt.Errorf("memcache: EmptyCache of %s: %w: a capture uses it, so that its segments stay until Release", p, ErrInvalid)
	}
	ctx, op := p.cache.reporter.start(ctx, OpEmptyCache)
	err := p.cache.grower.emptyCache(ctx, &p.place)
	p.cache.reporter.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}
