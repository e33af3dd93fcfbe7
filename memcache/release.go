package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Returning memory to the driver: in a flush, which waits for pending frees and returns all free
// segments, and in parts of one, which garbage.go selects. In each case the chunks are taken out of
// the index with their shards locked, so that no hit takes them. Then the driver is called with
// only the growth lock held. Then, with all shards locked again, the segments are removed or, after
// an error, put back.

// emptyCache is EmptyCache of the default pool and the released ones, or of the private pool p
// alone.
func (g *grower) emptyCache(ctx context.Context, p *placement.Pool) error {
	return g.releasing(ctx, "EmptyCache", func() error {
		err := g.flush(ctx, p, nil)
		g.shards.history.markPool(endOf(err, ActionEmptyCache), p)
		return err
	})
}

// endOf returns the history's action for the end of a call.
func endOf(err error, end Action) Action {
	if err != nil {
		return ActionFailed
	}
	return end
}

// releasing calls work with the growth lock, for an API call that returns memory to the driver.
func (g *grower) releasing(ctx context.Context, call string, work func() error) error {
	if ctx == nil {
		return fmt.Errorf("memcache: %s: %w: the context is nil; use context.Background()", call, ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memcache: %s: %w", call, err)
	}
	if h := g.shards.history.Load(); h != nil {
		if err := h.stream.enter(ctx, noRequest); err != nil {
			return err
		}
		defer h.stream.leave()
	}
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	if g.shards.isClosed() {
		return fmt.Errorf("memcache: %s: %w", call, ErrClosed)
	}
	return work()
}

// flush waits for pending frees and returns every free segment (release_cached_blocks) of the
// default pool, the released pools and the private pool own, whose request found no memory; or of
// the private pool p alone. With Exact, while a pool is entered, it does not wait, and keeps the
// default pool's segments. Only the growth lock is held, because flush waits for streams.
func (g *grower) flush(ctx context.Context, p, own *placement.Pool) error {
	g.shards.mu.Lock()
	entered := g.shards.inContext()
	if p != nil && g.shards.config().Exact && !g.freeable.has(p) {
		g.shards.mu.Unlock()
		return nil // an earlier flush found that it has no memory left
	}
	g.shards.mu.Unlock()
	if err := g.awaitFrees(ctx, p); err != nil {
		return err
	}

	// Hits may take and free chunks during the driver calls, but not the chunks that were taken out
	// here.
	var err error
	for _, t := range g.takeReleasable(p, own, entered) {
		if err != nil {
			t.shard.putBack(t.chunk)
			continue
		}
		err = g.giveBack(ctx, t, math.MaxInt64)
	}
	g.forgetFreeable(p)
	return errors.Join(err, g.returnAddresses(false))
}

// awaitFrees counts a flush and waits for pending frees, unless a pool is entered, with Exact. Only
// the growth lock is held.
func (g *grower) awaitFrees(ctx context.Context, p *placement.Pool) error {
	if g.shards.inContext() {
		return nil
	}
	// PyTorch counts a flush before it waits, whether or not anything is pending or free.
	g.shards.mu.Lock()
	g.ledger.stats.NumSyncAllStreams++
	g.shards.history.markPool(ActionFlush, p)
	g.shards.mu.Unlock()
	return g.synchronize(ctx, p)
}

// giveBack returns the segment of a chunk that is taken out to the driver. Of an expandable segment
// it returns as many whole granules of the chunk as atMost bytes need. What is not returned becomes
// free again. Only the growth lock is held.
func (g *grower) giveBack(ctx context.Context, t taken, atMost int64) error {
	seg := t.chunk.Segment()
	if seg.Expandable() {
		return g.shrink(ctx, t, atMost)
	}
	err := g.driverFree(ctx, t.shard, seg)
	if err != nil {
		t.shard.putBack(t.chunk)
	}
	return err
}

// synchronize waits for pending frees; with Exact only for those of the private pool p, unless it
// is nil. The growth lock is held.
func (g *grower) synchronize(ctx context.Context, p *placement.Pool) error {
	if !g.shards.config().Exact {
		p = nil
	}
	ctx, op := g.reporter.start(ctx, OpSynchronize)
	err := g.shards.waitPending(ctx, p)
	g.reporter.end(op, OpInfo{Op: OpSynchronize, Err: err})
	return err
}

// takeReleasable takes out the chunks that a flush returns, in order: whole segments, and free
// chunks of expandable segments that contain a whole granule. The default pool's come first, large
// before small, unless a pool is entered. Then follow those of the released private pools in their
// order and of own, small before large, as in PyTorch. With p it takes only that pool's. Pinned
// pools keep theirs.
func (g *grower) takeReleasable(p, own *placement.Pool, entered bool) (list []taken) {
	g.shards.lockAll()
	defer g.shards.unlockAll()
	take := func(p *placement.Pool, kinds ...placement.Kind) {
		if p.Pinned() {
			return
		}
		for _, k := range kinds {
			var granules []taken
			for _, s := range g.shards.list() {
				w, g := s.arena.TakeReleasable(p, k)
				list, granules = append(list, s.took(w)...), append(granules, s.took(g)...)
			}
			list = append(list, granules...)
		}
	}
	if p != nil {
		take(p, placement.Small, placement.Large)
		return list
	}
	if !entered {
		take(nil, placement.Large, placement.Small)
	}
	for _, p := range g.releasedPools() {
		take(p, placement.Small, placement.Large)
	}
	if own != nil {
		take(own, placement.Small, placement.Large)
	}
	return list
}

// forgetFreeable removes the released pools without memory from freeable, after a flush of all, or
// of p alone.
func (g *grower) forgetFreeable(p *placement.Pool) {
	if !g.shards.config().Exact {
		return
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	mapped := make(map[*placement.Pool]bool)
	for _, s := range g.shards.list() {
		for pool := range s.arena.Pools() {
			mapped[pool] = mapped[pool] || s.arena.Mapped(pool)
		}
	}
	for _, pool := range g.freeable.all() {
		if (p == nil || p == pool) && pool.DriverCalls == 0 && !mapped[pool] {
			g.freeable.remove(pool)
		}
	}
}

// returnAddresses returns the addresses of expandable segments that have no memory any more; with
// fresh also of those that never had any, because their first mapping failed. The growth lock is
// held.
func (g *grower) returnAddresses(fresh bool) error {
	if g.vmm == nil {
		return nil
	}
	g.shards.lockAll()
	var empty []*placement.Segment
	for _, s := range g.shards.list() {
		empty = append(empty, s.arena.RemoveEmpty(fresh)...)
	}
	g.shards.unlockAll()
	for _, seg := range empty {
		g.unused = append(g.unused, seg.Ptr())
	}
	return g.unreserve()
}

// unreserve returns unused addresses. The next call retries those that the driver refuses. The
// growth lock is held, or the cache is being closed.
func (g *grower) unreserve() error {
	errs := []error{g.unmapStuck()}
	g.unused = slices.DeleteFunc(g.unused, func(p device.Ptr) bool {
		if err := g.vmm.Unreserve(p); err != nil {
			errs = append(errs, err)
			return false
		}
		g.driverRanges.remove(p)
		return true
	})
	return errors.Join(errs...)
}

// driverFreeAll returns segments, whose chunks are taken out, to the driver (release_block). After
// an error the rest is put back. The growth lock is held.
func (g *grower) driverFreeAll(ctx context.Context, list []taken) error {
	// One after the other, with only the growth lock held, so that hits continue between and during
	// the calls.
	for i, t := range list {
		if err := g.driverFree(ctx, t.shard, t.chunk.Segment()); err != nil {
			for _, t := range list[i:] {
				t.shard.putBack(t.chunk)
			}
			return err
		}
	}
	return nil
}

// driverFree returns a segment of s, whose chunk is taken out, to the driver (release_block). After
// an error the chunk is still taken out, and the caller puts it back. s is nil if it no longer
// contains the segment. The growth lock is held.
func (g *grower) driverFree(ctx context.Context, s *shard, seg *placement.Segment) error {
	if err := g.callFree(ctx, seg); err != nil {
		return err
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	g.forgetSegment(s, seg)
	return nil
}

// callFree calls the driver's Free and notifies the observer. Only the growth lock is held.
func (g *grower) callFree(ctx context.Context, seg *placement.Segment) error {
	_, op := g.reporter.start(ctx, OpDriverFree)
	err := g.dev.Free(seg.Ptr())
	g.reporter.end(op, OpInfo{Op: OpDriverFree, Stream: seg.Stream(), Bytes: seg.Bytes(), Pool: seg.Kind().String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: returning a segment of %s: %w", sizes.Format(seg.Bytes()), err)
	}
	return nil
}

// forgetSegment removes a segment of s that the driver has freed from the accounting and the arena.
// All shards are locked.
func (g *grower) forgetSegment(s *shard, seg *placement.Segment) {
	g.driverRanges.remove(seg.Ptr())
	g.ledger.stats.NumDeviceFree++
	g.ledger.stats.Segment.sub(seg.Kind(), 1)
	g.ledger.uncountReserved(seg.Kind(), seg.Bytes())
	var pool *placement.Pool
	if s != nil {
		pool = seg.Pool()
		countsOf(pool).reserved(seg.Kind(), -1, -seg.Bytes())
	}
	if seg.Bytes() >= g.shards.rules().MaxSplit {
		g.ledger.stats.OversizeSegments.sub(1)
	}
	g.shards.history.segment(ActionSegmentFree, seg.Ptr(), seg.Bytes(), seg.Stream(), pool, nil)
	if s != nil {
		pool.CountDriverCalls(-1)
		s.arena.Remove(seg)
	}
}

// releasedPools returns the released pools in the order of a flush: those with segments, by number,
// or with Exact the order of poolTable. All shards are locked.
func (g *grower) releasedPools() []*placement.Pool {
	if g.shards.config().Exact {
		return g.freeable.all()
	}
	var pools []*placement.Pool
	for _, s := range g.shards.list() {
		for p := range s.arena.Pools() {
			if p.Released {
				pools = append(pools, p)
			}
		}
	}
	slices.SortFunc(pools, func(a, b *placement.Pool) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return slices.Compact(pools)
}
