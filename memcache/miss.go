package memcache

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// What a request does that found no free chunk: inherit, collect, remap, grow, lend, release, flush, grow again: PyTorch's
// order, with our own steps in between; and last the reclaimers.

// allocMiss serves a request that found no free chunk. As long as it runs out of memory and a reclaimer frees something it
// tries again. No lock is held, so that a reclaimer may use the cache.
func (c *Cache) allocMiss(ctx context.Context, stream device.Stream, r *request) error {
	var p pressure
	for {
		err := c.allocGrowing(ctx, stream, r)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			if r.growing { // else it has changed nothing
				c.shards.history.mark(ActionFailed, r.shard.id, r.Bytes)
			}
			return err
		}
		if !c.reclaim(ctx, r.segmentBytes, &p) {
			c.shards.mu.Lock()
			c.ledger.stats.NumOOMs++
			c.ledger.baseCounts.misses++
			c.shards.history.oom(r, err)
			c.shards.mu.Unlock()
			c.nameHolders(err)
			return err
		}
	}
}

// allocGrowing searches once more, since another request may have grown the cache meanwhile, asks the driver, flushes, and
// asks again. It holds the growth lock throughout: two requests never flush what the other one is about to use.
func (c *Cache) allocGrowing(ctx context.Context, stream device.Stream, r *request) error {
	if err := c.lockGrowth(ctx); err != nil {
		return err
	}
	defer c.unlockGrowth()
	r.growing = true
	r.shard = c.shards.of(stream) // shards are retired under the growth lock only: this one stays until the end
	c.inheritSegments(r)
	if c.config.NoCaching {
		return c.growUncached(ctx, r)
	}
	if served, err := c.searchShard(r); served || err != nil {
		return err
	}
	// What was idle for long goes back first, so that the limit is not reached.
	if err := c.collectGarbage(ctx); err != nil {
		return err
	}
	if err := c.remap(ctx, r); err != nil {
		return err
	}
	err := c.grow(ctx, r, false)
	if !errors.Is(err, ErrOutOfMemory) {
		return err
	}
	// The driver has nothing, or the limit is reached. From here on each step takes more from others than the one before.
	if c.allocFromLendingPool(r) {
		return nil
	}
	released, err := c.releaseOversize(ctx, r)
	if err != nil {
		return err
	}
	if released {
		if err = c.grow(ctx, r, false); !errors.Is(err, ErrOutOfMemory) {
			return err
		}
	}
	// A flush waits for other streams, and empties the cache: the last resort of the cache itself.
	if err := c.flush(ctx, nil); err != nil {
		return err
	}
	// The flush waited for pending frees, whose chunks may serve the request though their segments could not be returned.
	// PyTorch does not look again.
	if !c.config.Exact {
		if served, err := c.searchShard(r); served || err != nil {
			return err
		}
		if c.allocFromLendingPool(r) {
			return nil
		}
	}
	return c.grow(ctx, r, true)
}
