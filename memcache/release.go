package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
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
	ctx, op := c.start(ctx, OpEmptyCache)
	err := c.emptyCache(ctx, nil)
	c.end(op, OpInfo{Op: OpEmptyCache, Err: err})
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
	if h := c.history.Load(); h != nil {
		if err := h.stream.enter(ctx, noRequest); err != nil {
			return err
		}
		defer h.stream.leave()
	}
	if err := c.lockGrowth(ctx); err != nil {
		return err
	}
	defer c.unlockGrowth()
	if c.isClosed() {
		return fmt.Errorf("memcache: EmptyCache: %w", ErrClosed)
	}
	err := c.flushPool(ctx, p)
	end := ActionEmptyCache
	if err != nil {
		end = ActionFailed
	}
	c.markPool(end, p)
	return err
}

// flush waits for the pending frees and returns every free segment (release_cached_blocks). The growth lock is held, and no
// other: it waits for streams.
func (c *Cache) flush(ctx context.Context) error { return c.flushPool(ctx, nil) }

// flushPool is flush; for a private pool its free segments alone are returned.
func (c *Cache) flushPool(ctx context.Context, p *Pool) error {
	// PyTorch counts a flush before it waits, whether or not anything is pending or free.
	c.mu.Lock()
	c.stats.NumSyncAllStreams++
	c.markPool(ActionFlush, p)
	c.mu.Unlock()
	waitCtx, op := c.start(ctx, OpSynchronize)
	err := c.waitForPending(waitCtx)
	c.end(op, OpInfo{Op: OpSynchronize, Err: err})
	if err != nil {
		return err
	}

	// Hits may take and free chunks while the driver works: those that were taken out here are not among them.
	free, expandable := c.takeReleasable(p)
	err = c.driverFreeAll(ctx, free)
	for _, m := range expandable {
		if err == nil {
			err = c.shrink(ctx, m)
		} else {
			c.putBack(m)
		}
	}
	return errors.Join(err, c.returnAddresses(false))
}

// takeReleasable takes out of the index what a flush gives back: whole segments, and free chunks of expandable segments
// that have a whole granule. It takes the default pool's, large before small, and those of the released private pools in
// their order, small before large, as PyTorch does; or those of the pool p.
func (c *Cache) takeReleasable(p *Pool) (free, expandable []*chunk) {
	c.lockAll()
	defer c.unlockAll()
	shards := c.table.Load().list
	take := func(p *Pool, kind poolKind) {
		for _, s := range shards {
			l := s.listsFor(p)
			if l == nil {
				continue
			}
			// What is found is taken out after the walk: the index must not change during it.
			from := [2]int{len(free), len(expandable)}
			l.free[kind].each(func(m *chunk) {
				if m.segment.expandable {
					if from, to := c.wholeGranules(m); from >= to {
						return
					}
					expandable = append(expandable, m)
				} else if m.isSegment() {
					free = append(free, m)
				}
			})
			takeOut(free[from[0]:])
			takeOut(expandable[from[1]:])
		}
	}
	pools := []*Pool{p}
	if p == nil {
		take(nil, largePool)
		take(nil, smallPool)
		pools = c.releasedPools()
	}
	for _, p := range pools {
		take(p, smallPool)
		take(p, largePool)
	}
	return free, expandable
}

// takeOut takes chunks out of the index, so that nobody hands them out. Their shards are locked.
func takeOut(blocks []*chunk) {
	for _, m := range blocks {
		m.segment.free.remove(m)
	}
}

// putBack undoes takeOut for a chunk, whose age goes on. No lock but growth is held.
func (c *Cache) putBack(m *chunk) {
	s := m.lockOwner()
	defer s.mu.Unlock()
	born := m.freeSince
	s.mergeAndInsert(m)
	m.freeSince = born
}

// mergeAndInsert makes a chunk free that was out of the index while no shard was locked, in which its neighbours may have
// become free: only parts of expandable segments have neighbours then, and those change no gauge. s.mu is held.
func (s *shard) mergeAndInsert(m *chunk) {
	for _, n := range [2]*chunk{m.prev, m.next} {
		if n.mergeable() {
			s.absorb(m, n)
		}
	}
	s.insertFree(m)
}

// returnAddresses gives the addresses of expandable segments back that have no memory any more; with fresh also of those
// that never had any, as their first mapping failed. The growth lock is held.
func (c *Cache) returnAddresses(fresh bool) error {
	if !c.config.ExpandableSegments {
		return nil
	}
	c.lockAll()
	// One unmapped chunk from end to end: nothing is mapped.
	var empty []*segment
	for _, s := range c.table.Load().list {
		for _, seg := range s.segments {
			if m := seg.first; m.unmapped && m.isSegment() && (fresh || seg.everMapped) {
				empty = append(empty, seg)
				m.segment.unmapped.remove(m)
				s.removeSegment(seg)
				s.recycle(m)
			}
		}
	}
	c.unlockAll()
	var errs []error
	for _, seg := range empty {
		c.driverRanges.remove(seg.ptr)
		errs = append(errs, c.vmm.Unreserve(seg.ptr))
	}
	return errors.Join(errs...)
}

// driverFreeAll returns segments, whose chunks are not in the index, to the driver. After an error the others are put back.
// The growth lock is held.
func (c *Cache) driverFreeAll(ctx context.Context, blocks []*chunk) error {
	// One after the other, with the growth lock alone, so that hits go on between and during the calls.
	for i, m := range blocks {
		if err := c.driverFree(ctx, m.segment); err != nil {
			for _, m := range blocks[i:] {
				c.putBack(m)
			}
			return err
		}
	}
	return nil
}

// driverFree returns a segment, whose chunk is not in the index, to the driver (release_block). After an error the chunk
// is still in no index: the caller puts it back. The growth lock is held.
func (c *Cache) driverFree(ctx context.Context, seg *segment) error {
	if err := c.callFree(ctx, seg); err != nil {
		return err
	}
	c.lockAll()
	defer c.unlockAll()
	c.forgetSegment(seg)
	return nil
}

// callFree calls the driver, beside the observer. Only the growth lock is held.
func (c *Cache) callFree(ctx context.Context, seg *segment) error {
	m := seg.first
	_, op := c.start(ctx, OpDriverFree)
	err := c.dev.Free(seg.ptr)
	c.end(op, OpInfo{Op: OpDriverFree, Stream: seg.stream, Bytes: seg.bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: returning a segment of %s: %w", formatBytes(seg.bytes), err)
	}
	return nil
}

// forgetSegment drops a segment that the driver took back from the books. All shards are locked.
func (c *Cache) forgetSegment(seg *segment) {
	m := seg.first
	c.driverRanges.remove(seg.ptr)
	c.stats.NumDeviceFree++
	c.stats.Segment.sub(m.kind, 1)
	c.stats.ReservedBytes.sub(m.kind, seg.bytes)
	if seg.bytes >= c.sizing.maxSplit {
		c.stats.OversizeSegments.sub(1)
	}
	owner := m.shard.Load()
	c.recordSegment(ActionSegmentFree, seg.ptr, seg.bytes, seg.stream, nil)
	owner.removeSegment(seg)
	owner.recycle(m)
}
