package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Growth. One goroutine at a time allocates from the driver, under the growth lock. Driver calls
// take microseconds to milliseconds and may wait for the device, so no shard is locked meanwhile:
// hits and frees of all streams continue. If two requests miss at once they don't both add a
// segment where the rest of the first one suffices for the second, because the second searches
// again when it gets the lock. PyTorch holds its single lock throughout, or releases it around the
// driver's allocation (release_lock_on_cudamalloc), and then may grow twice.

// grow allocates a segment from the driver, or grows an expandable segment, and serves the request
// from it (alloc_block). retry reports that a flush went before. The growth lock is held.
func (g *grower) grow(ctx context.Context, r *request, retry bool) error {
	bytes := r.segmentBytes
	g.shards.mu.Lock()
	// The pool must not grow after its release: a flush that has found it without memory does not
	// visit it again.
	if isReleased(r.Pool) {
		defer g.shards.mu.Unlock()
		return r.refusal()
	}
	if retry {
		g.ledger.stats.NumAllocRetries++
	}
	// The limit is checked before the driver is called. The difference can't overflow, whereas a
	// sum could.
	limited := g.ledger.limit < bytes || g.ledger.stats.ReservedBytes.All.Current > g.ledger.limit-bytes
	r.rejected = limited && g.shards.config().ThrowOnCudaMallocOOM
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
	// Adding the segment and allocating from it happen under one lock, so that no reader sees the
	// segment reserved and unused.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	m := g.addSegment(r, p, bytes)
	r.shard.allocFresh(m, r)
	return nil
}

// addSegment makes driver memory a segment of the request's shard and pool, and returns its chunk,
// which is taken out of the index. All shards are locked.
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

// driverAlloc allocates from the driver and notifies the observer. Only the growth lock is held.
func (g *grower) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := g.reporter.start(ctx, OpDriverAlloc)
	p, err := g.dev.Alloc(bytes)
	g.reporter.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.Kind.String(), Err: err})
	return p, err
}
