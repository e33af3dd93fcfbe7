package memcache

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Private pools share only the driver with the default pool. Each pool has free lists of its own in
// every arena that contains a segment of it (package placement), and each segment refers to the
// lists that its chunks return to. So a pool costs the requests outside of it nothing, not even a
// comparison on a free. Requests inside find their pool in the context.

// PoolOptions configures a private pool.
type PoolOptions struct {
	// UseOnOOM lends the pool's free blocks to requests of the default pool when the driver has no
	// memory for them. The pool does not grow for such requests.
	UseOnOOM bool
	// NoSplit serves requests with whole free blocks and segments only.
	NoSplit bool
	// StartSmall lets the pool begin with small segments. A request of 1 to 10 MiB that finds no
	// free block normally gets a segment of 20 MiB (LargeSegmentSizeMB). With StartSmall it gets a
	// segment with 1 to 3 MiB to spare, or one as large as all that the pool has for such requests,
	// and at most the normal size. A pool for a few MiB, such as that of a captured step, then
	// reserves about twice what it holds at most. StartSmall has no effect with Config.Exact or
	// ExpandableSegments.
	StartSmall bool
	// ID is the pool's ID, {0, n} or {n, 0}, which no other unreleased pool may have. Zero: the
	// next {0, n}. With Config.Exact the ID determines the order in which several pools lend or
	// return their memory, as in PyTorch.
	ID PoolID
}

// Pool is a private pool (torch.cuda.MemPool): segments of its own, for blocks that must not share
// memory with other requests. Its creator owns it and ends it with Release. All methods may be
// called from any goroutine. The nil Pool stands for the default pool.
//
// A pool changes nothing for requests outside of it. In PyTorch, entering a pool stops three things
// on the whole device: the reuse of recorded blocks, the flush before an out-of-memory error, and
// empty_cache. The limits, the statistics and the peaks of the cache cover all pools; [Pool.Stats]
// covers this pool. Garbage collection and the flush of another pool's request don't return the
// free segments of an unreleased pool. A request of the pool that finds no memory returns them to
// the driver and grows the pool again, unless a captured stream has allocated or used its blocks,
// because the graph uses its free memory. With [Config.Exact] the segments stay, as in PyTorch, and
// an entered pool stops all that PyTorch stops: see Enter.
type Pool struct {
	cache *Cache
	place placement.Pool
	lends bool

	graphs GraphPool
}

// NewPool creates a private pool, which has no memory yet.
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
		return nil, fmt.Errorf("memcache: NewPool with the ID %v: %w: an unreleased pool already has it", id, ErrInvalid)
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

// Lends reports whether requests outside of the pool may use its free blocks
// ([PoolOptions.UseOnOOM]). Such a pool must not hold the memory of graphs.
func (p *Pool) Lends() bool { return p != nil && p.lends }

// ID returns the pool's ID; zero for the nil Pool.
func (p *Pool) ID() PoolID {
	if p == nil {
		return PoolID{}
	}
	return p.place.ID
}

// String returns the pool's name, which contains its ID.
func (p *Pool) String() string {
	if p == nil {
		return "default pool"
	}
	return fmt.Sprintf("private pool %d", p.place.ID[0]+p.place.ID[1])
}

// Release ends the pool: Alloc with its context fails with [ErrReleased], and the pool no longer
// lends blocks. Blocks in use stay valid. Its free segments, and the others after their blocks are
// freed, return to the driver with the next EmptyCache of the pool or of the cache, or when a
// request finds no memory. Release doesn't wait, and is idempotent.
func (p *Pool) Release() error {
	if p == nil {
		return fmt.Errorf("memcache: Pool.Release: %w: the pool is nil; it must come from NewPool", ErrInvalid)
	}
	c := p.cache
	defer c.grower.waits.freed()
	c.shards.lockAll()
	defer c.shards.unlockAll()
	// With all shards locked, a request has either taken its block already or finds the pool
	// released.
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

// Enter marks that the program allocates from the pool, in a capture or otherwise, until it calls
// leave (use_mem_pool, capture_begin). It does not select the pool for requests; Context does.
// Enter reproduces the effects that an entered pool has in PyTorch on all requests and frees of the
// device. With [Config.Exact], while any pool is entered:
//   - No request polls whether pending frees are complete.
//   - A block that other streams were recorded on is deferred when it is freed, until the first
//     request or EmptyCache while no pool is entered. It then waits for the streams that were
//     recorded before Enter, and for none that was recorded while a pool was entered.
//   - A request for which the driver has no memory fails without a flush and a retry.
//   - EmptyCache waits for nothing, and returns only the free memory of released pools.
//
// Without Exact it changes nothing, because a pool affects only its own requests. leave may be
// called more than once.
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

// Snapshot returns the pool's segments at this moment, by address (MemPool.snapshot). For the nil
// Pool it returns nil.
func (p *Pool) Snapshot() []SegmentSnapshot {
	if p == nil {
		return nil
	}
	all := &p.cache.shards
	all.lockAll()
	defer all.unlockAll()
	return slices.DeleteFunc(all.copySegments(), func(s SegmentSnapshot) bool { return s.PoolID != p.place.ID })
}

// EmptyCache waits for pending frees and returns the free segments of this pool alone to the
// driver. It fails with an error that wraps [ErrInvalid] if the pool must keep them until Release:
// if a captured stream has allocated or used its blocks, because graphs use its free memory, or
// with [Config.Exact].
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
