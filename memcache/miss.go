package memcache

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// What a request does that found no free chunk: inherit, collect, remap, grow, lend, release, flush, grow again: PyTorch's
// order, with our own steps in between; and last the reclaimers.

// allocMiss serves a request that found no free chunk, or that stands behind others. No lock is held.
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
		g.shards.history.oom(r, err)
		g.shards.mu.Unlock()
		g.explain(stream, r, err)
		g.oomObservers.tell(ctx, err)
	}
	return err
}

// allocAsking tries again as long as it runs out of memory and a reclaimer frees something. No lock is held, so that a reclaimer
// may use the cache.
func (g *grower) allocAsking(ctx context.Context, stream device.Stream, r *request) error {
	var p pressure
	for {
		err := g.allocGrowing(ctx, stream, r)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			if r.growing { // else it has changed nothing
				g.shards.history.mark(ActionFailed, r.shard.id, r.Bytes)
			}
			return err
		}
		if r.rejected || !g.reclaimers.ask(ctx, r.segmentBytes, g.dev.Properties().TotalMemory, &p) {
			return err
		}
	}
}

// allocGrowing searches once more, since another request may have grown the cache meanwhile, asks the driver, flushes, and
// asks again. It holds the growth lock throughout: two requests never flush what the other one is about to use.
func (g *grower) allocGrowing(ctx context.Context, stream device.Stream, r *request) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	r.growing = true
	r.shard = g.shards.of(stream) // shards are retired under the growth lock only: this one stays until the end
	if !g.shards.config().Exact {
		if err := g.shards.pollPending(); err != nil { // the request has asked for its own shard's alone
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
	// What was idle for long goes back first, so that the limit is not reached.
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
	// The driver has nothing, or the limit is reached. From here on each step takes more from others than the one before.
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
	// A flush waits for other streams, and empties the cache: the last resort of the cache itself.
	own := r.Pool
	if g.shards.config().Exact {
		own = nil
	}
	if err := g.flush(ctx, nil, own); err != nil {
		return err
	}
	// The flush waited for pending frees, whose chunks may serve the request though their segments could not be returned.
	// PyTorch does not look again.
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

// allocFromLendingPool serves a request of the default pool from a private pool with UseOnOOM, in the order in which they
// were made (with Exact, of poolTable), if one has a free chunk of the stream that fits. The chunk stays the pool's, and returns to it. PyTorch never
// lends chunks of expandable segments; Exact does the same. The growth lock is held; all shards are locked meanwhile, so
// that the search cannot be refused for a quota and no pool is released under it.
func (g *grower) allocFromLendingPool(r *request) bool {
	if r.Pool != nil || g.shards.config().Exact && g.shards.config().ExpandableSegments {
		return false
	}
	// The request belongs to the pool only while that is tried: if none can lend, it is the default pool that grows.
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
