package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Growth. One goroutine at a time asks the driver for memory, under the growth lock. Calls of the driver take from
// microseconds to milliseconds and may wait for the device, so no shard is locked meanwhile: hits, and frees, of all
// streams go on. Two requests that miss at once therefore don't both grow the cache by a segment of which the first one's
// rest would have served the second: the second searches again when it gets the lock. PyTorch holds its one lock through
// all of it, or gives it up around the driver's allocation (release_lock_on_cudamalloc) and then may grow twice.

// grow asks the driver for a segment, or an expandable segment for more, and serves the request from it (alloc_block).
// retry says that a flush went before. The growth lock is held.
func (g *grower) grow(ctx context.Context, r *request, retry bool) error {
	bytes := r.segmentBytes
	g.shards.mu.Lock()
	// A flush that has seen the pool without memory does not look at it again.
	if isReleased(r.Pool) {
		defer g.shards.mu.Unlock()
		return r.refusal()
	}
	if retry {
		g.ledger.stats.NumAllocRetries++
	}
	// A limit refuses before the driver is asked. The difference can't overflow, where a sum could.
	limited := g.ledger.limit < bytes || g.ledger.stats.ReservedBytes.All.Current > g.ledger.limit-bytes
	if r.rejected = limited && g.shards.config().ThrowOnCudaMallocOOM; r.rejected {
		g.ledger.stats.NumOOMRejections++
	}
	g.shards.mu.Unlock()
	if limited {
		return g.outOfMemory(r, nil)
	}
	if g.shards.config().ExpandableSegments {
		return g.expand(ctx, r)
	}
	p, err := g.driverAlloc(ctx, bytes, r)
	if err != nil {
		return g.growError(r, err)
	}
	if err := g.driverRanges.add(p, bytes); err != nil {
		return g.growError(r, err)
	}
	// A new segment changes the cache's statistics and perhaps a peak, and is handed out in the same moment: nobody sees
	// it reserved and not in use.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	m := g.addSegment(r, p, bytes)
	r.shard.allocFresh(m, r)
	return nil
}

// addSegment makes driver memory a segment of the request's shard and pool, and returns its chunk,
// which is taken out. All shards are locked.
func (g *grower) addSegment(r *request, p device.Ptr, bytes int64) *placement.Chunk {
	r.Pool.CountDriverCalls(1)
	s := r.shard
	m := s.arena.NewSegment(p, bytes, r.Kind, r.Pool)
	g.ledger.stats.Segment.add(r.Kind, 1)
	g.ledger.stats.NumDeviceAlloc++
	if bytes >= g.shards.rules().MaxSplit {
		g.ledger.stats.OversizeSegments.add(1)
	}
	g.ledger.countReserved(r.Kind, bytes)
	countsOf(r.Pool).reserved(r.Kind, 1, bytes)
	g.shards.history.segment(ActionSegmentAlloc, p, bytes, s.id, r.Pool, r.stack)
	return m
}

// driverAlloc calls the driver, beside the observer. Only the growth lock is held.
func (g *grower) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := g.reporter.start(ctx, OpDriverAlloc)
	p, err := g.dev.Alloc(bytes)
	g.reporter.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.Kind.String(), Err: err})
	return p, err
}
