package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Memory goes back to the driver: in a flush, which waits for the pending frees and returns all free segments, and in parts
// of one, which garbage.go chooses. In each case the chunks are taken out of the index with their shards locked, so that
// no hit takes them; then the driver is called with the growth lock alone; then the segments are forgotten, or after an
// error put back, with all shards locked again.

// EmptyCache waits for the frees that are pending and returns every free segment to the driver
// (torch.cuda.empty_cache). Segments with a block in use stay, and those of private pools that were not
// released.
func (c *Cache) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer c.verify()
	}
	ctx, op := c.reporter.start(ctx, OpEmptyCache)
	err := c.emptyCache(ctx, nil)
	c.reporter.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}

// emptyCache is EmptyCache of the default pool and the released ones, or of the private pool p alone.
func (c *Cache) emptyCache(ctx context.Context, p *Pool) error {
	if ctx == nil {
		return fmt.Errorf("memcache: EmptyCache: %w: the context is nil; use context.Background()", ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memcache: EmptyCache: %w", err)
	}
	if h := c.shards.history.Load(); h != nil {
		if err := h.stream.enter(ctx, noRequest); err != nil {
			return err
		}
		defer h.stream.leave()
	}
	if err := c.lockGrowth(ctx); err != nil {
		return err
	}
	defer c.unlockGrowth()
	if c.shards.isClosed() {
		return fmt.Errorf("memcache: EmptyCache: %w", ErrClosed)
	}
	err := c.flush(ctx, p)
	end := ActionEmptyCache
	if err != nil {
		end = ActionFailed
	}
	c.shards.history.markPool(end, p)
	return err
}

// flush waits for the pending frees and returns every free segment (release_cached_blocks), of the default pool and the
// released ones, or of the private pool p alone. The growth lock is held, and no other: it waits for streams.
func (c *Cache) flush(ctx context.Context, p *Pool) error {
	// PyTorch counts a flush before it waits, whether or not anything is pending or free.
	c.shards.mu.Lock()
	c.ledger.stats.NumSyncAllStreams++
	c.shards.history.markPool(ActionFlush, p)
	c.shards.mu.Unlock()
	waitCtx, op := c.reporter.start(ctx, OpSynchronize)
	err := c.pending.wait(waitCtx)
	c.reporter.end(op, OpInfo{Op: OpSynchronize, Err: err})
	if err != nil {
		return err
	}

	// Hits may take and free chunks while the driver works: those that were taken out here are not among them.
	whole, granules := c.takeReleasable(p)
	err = c.driverFreeAll(ctx, whole)
	for _, t := range granules {
		if err == nil {
			err = c.shrink(ctx, t)
		} else {
			c.putBack(t.shard, t.chunk)
		}
	}
	return errors.Join(err, c.returnAddresses(false))
}

// taken is a chunk that is taken out of its shard's arena, by who has the growth lock.
type taken struct {
	shard *shard
	chunk *placement.Chunk
}

// took are chunks that were taken out of the shard's arena.
func (s *shard) took(chunks []*placement.Chunk) []taken {
	list := make([]taken, len(chunks))
	for i, m := range chunks {
		list[i] = taken{s, m}
	}
	return list
}

// takeReleasable takes out what a flush gives back: whole segments, and free chunks of expandable segments that have a whole
// granule. It takes the default pool's, large before small, and those of the released private pools in their order, small
// before large, as PyTorch does; or those of the pool p.
func (c *Cache) takeReleasable(p *Pool) (whole, granules []taken) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	take := func(p *placement.Pool, kinds ...placement.Kind) {
		for _, k := range kinds {
			for _, s := range c.shards.list() {
				w, g := s.arena.TakeReleasable(p, k)
				whole, granules = append(whole, s.took(w)...), append(granules, s.took(g)...)
			}
		}
	}
	if p != nil {
		take(&p.place, placement.Small, placement.Large)
		return whole, granules
	}
	take(nil, placement.Large, placement.Small)
	for _, p := range c.shards.releasedPools() {
		take(p, placement.Small, placement.Large)
	}
	return whole, granules
}

// putBack makes a chunk of s free again that was taken out. No lock but growth is held.
func (c *Cache) putBack(s *shard, m *placement.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.merges += s.arena.PutBack(m)
}

// returnAddresses gives the addresses of expandable segments back that have no memory any more; with fresh also of those
// that never had any, as their first mapping failed. The growth lock is held.
func (c *Cache) returnAddresses(fresh bool) error {
	if !c.config.ExpandableSegments {
		return nil
	}
	c.shards.lockAll()
	var empty []*placement.Segment
	for _, s := range c.shards.list() {
		empty = append(empty, s.arena.RemoveEmpty(fresh)...)
	}
	c.shards.unlockAll()
	var errs []error
	for _, seg := range empty {
		c.driverRanges.remove(seg.Ptr())
		errs = append(errs, c.vmm.Unreserve(seg.Ptr()))
	}
	return errors.Join(errs...)
}

// driverFreeAll returns segments, whose chunks are taken out, to the driver (release_block). After an error the others are
// put back. The growth lock is held.
func (c *Cache) driverFreeAll(ctx context.Context, list []taken) error {
	// One after the other, with the growth lock alone, so that hits go on between and during the calls.
	for i, t := range list {
		if err := c.driverFree(ctx, t.shard, t.chunk.Segment()); err != nil {
			for _, t := range list[i:] {
				c.putBack(t.shard, t.chunk)
			}
			return err
		}
	}
	return nil
}

// driverFree returns a segment of s, whose chunk is taken out, to the driver (release_block). After an error it still is: the
// caller puts it back. A nil s has given the segment up already. The growth lock is held.
func (c *Cache) driverFree(ctx context.Context, s *shard, seg *placement.Segment) error {
	if err := c.callFree(ctx, seg); err != nil {
		return err
	}
	c.shards.lockAll()
	defer c.shards.unlockAll()
	c.forgetSegment(s, seg)
	return nil
}

// callFree calls the driver, beside the observer. Only the growth lock is held.
func (c *Cache) callFree(ctx context.Context, seg *placement.Segment) error {
	_, op := c.reporter.start(ctx, OpDriverFree)
	err := c.dev.Free(seg.Ptr())
	c.reporter.end(op, OpInfo{Op: OpDriverFree, Stream: seg.Stream(), Bytes: seg.Bytes(), Pool: seg.Kind().String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: returning a segment of %s: %w", formatBytes(seg.Bytes()), err)
	}
	return nil
}

// forgetSegment drops a segment of s that the driver took back from the books. All shards are locked.
func (c *Cache) forgetSegment(s *shard, seg *placement.Segment) {
	c.driverRanges.remove(seg.Ptr())
	c.ledger.stats.NumDeviceFree++
	c.ledger.stats.Segment.sub(seg.Kind(), 1)
	c.ledger.stats.ReservedBytes.sub(seg.Kind(), seg.Bytes())
	if seg.Bytes() >= c.shards.rules.MaxSplit {
		c.ledger.stats.OversizeSegments.sub(1)
	}
	c.shards.history.segment(ActionSegmentFree, seg.Ptr(), seg.Bytes(), seg.Stream(), nil)
	if s != nil {
		s.arena.Remove(seg)
	}
}
