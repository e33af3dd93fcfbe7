package memcache

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// The steps of a request that found no free chunk: inherit, collect, remap, grow, lend, release,
// flush, grow again. That is PyTorch's order, with steps of this package in between. The reclaimers
// come last.

// allocMiss serves a request that found no free chunk, or that queues after waiting requests. No
// lock is held.
func (g *grower) allocMiss(ctx context.Context, stream device.Stream, r *request) error {
	var err error
	if r.task == nil {
		err = g.allocAsking(ctx, stream, r)
	} else {
		err = g.allocWaiting(ctx, stream, r)
	}
	if errors.Is(err, ErrOutOfMemory) {
		g.shards.mu.Lock()
		g.ledger.stats.NumOOMs++
		if r.rejected {
			g.ledger.stats.NumOOMRejections++
		}
		g.shards.history.oom(r, err)
		g.shards.mu.Unlock()
		g.explain(stream, r, err)
		g.oomObservers.tell(ctx, err)
	}
	return err
}

// allocAsking retries as long as the request runs out of memory and a reclaimer frees something. No
// lock is held, so that a reclaimer may use the cache.
func (g *grower) allocAsking(ctx context.Context, stream device.Stream, r *request) error {
	var p pressure
	for {
		err := g.allocGrowing(ctx, stream, r)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			if r.growing { // otherwise it has changed nothing
				g.shards.history.mark(ActionFailed, r.shard.id, r.Bytes)
			}
			return err
		}
		if r.rejected || !g.reclaimers.ask(ctx, r.segmentBytes, g.dev.Properties().TotalMemory, &p) {
			return err
		}
	}
}

// allocGrowing searches again, because another request may have grown the cache meanwhile, calls
// the driver, flushes, and calls the driver again. It holds the growth lock throughout, so that one
// request never flushes memory that another is about to use.
func (g *grower) allocGrowing(ctx context.Context, stream device.Stream, r *request) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	r.growing = true
	// shards are retired only under the growth lock, so this one stays until the end
	r.shard = g.shards.of(stream)
	if !g.shards.config().Exact {
		if err := g.shards.pollPending(); err != nil { // the request has polled only its own shard
			return err
		}
	}
	g.inheritSegments(r)
	if g.shards.config().NoCaching {
		return g.growUncached(ctx, r)
	}
	if served, err := r.search(); served || err != nil {
		return err
	}
	if g.shards.config().ReuseAcrossStreams == ReuseBeforeGrowth {
		if served, err := g.shards.reuse(ctx, stream, r, false); served || err != nil {
			return err
		}
	}
	// Memory that was idle for long is returned first, so that the limit is not reached.
	if err := g.collectGarbage(ctx); err != nil {
		return err
	}
	if err := g.remap(ctx, r); err != nil {
		return err
	}
	failed := g.grow(ctx, r, false)
	if !errors.Is(failed, ErrOutOfMemory) || r.rejected {
		return failed
	}
	// The driver has no memory, or the limit is reached. From here on each step costs other
	// requests more than the one before.
	if g.allocFromLendingPool(r) {
		return nil
	}
	if g.shards.config().ReuseAcrossStreams != ReuseNever {
		if served, err := g.shards.reuse(ctx, stream, r, true); served || err != nil {
			return err
		}
	}
	released, err := g.releaseOversize(ctx, r)
	if err != nil {
		return err
	}
	if released {
		if failed = g.grow(ctx, r, false); !errors.Is(failed, ErrOutOfMemory) {
			return failed
		}
	}
	if g.shards.inContext() {
		return failed
	}
	// A flush waits for other streams and empties the cache, so it is the cache's own last resort.
	own := r.Pool
	if g.shards.config().Exact {
		own = nil
	}
	if err := g.flush(ctx, nil, own); err != nil {
		return err
	}
	// The flush waited for pending frees, whose chunks may serve the request even if their segments
	// could not be returned. PyTorch does not search again.
	if !g.shards.config().Exact {
		if served, err := r.search(); served || err != nil {
			return err
		}
		if g.allocFromLendingPool(r) {
			return nil
		}
	}
	return g.grow(ctx, r, true)
}

// allocFromLendingPool serves a request of the default pool from a private pool with UseOnOOM that
// has a fitting free chunk of the stream. It tries the pools in the order of their creation, or
// with Exact of poolTable. The chunk still belongs to the pool, and returns to it. PyTorch never
// lends chunks of expandable segments, and neither does Exact. The growth lock is held. All shards
// are locked meanwhile, so that no quota refuses the search and no pool is released during it.
func (g *grower) allocFromLendingPool(r *request) bool {
	if r.Pool != nil || g.shards.config().Exact && g.shards.config().ExpandableSegments {
		return false
	}
	// The request belongs to the pool only during the attempt: if no pool can lend, the default
	// pool grows.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	for _, p := range g.lending.all() {
		r.Pool = p
		if served, _ := r.shard.allocCached(r, true); served {
			return true
		}
	}
	r.Pool = nil
	return false
}
