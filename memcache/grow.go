package memcache

import (
	"context"
	"errors"
	"fmt"

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
func (c *Cache) grow(ctx context.Context, r *request, retry bool) error {
	bytes := r.segmentBytes
	c.shards.mu.Lock()
	if retry {
		c.ledger.stats.NumAllocRetries++
	}
	// A limit refuses before the driver is asked. The difference can't overflow, where a sum could.
	limited := c.ledger.limit < bytes || c.ledger.stats.ReservedBytes.All.Current > c.ledger.limit-bytes
	c.shards.mu.Unlock()
	if limited {
		return c.outOfMemory(r, nil)
	}
	if c.config.ExpandableSegments {
		return c.expand(ctx, r)
	}
	p, err := c.driverAlloc(ctx, bytes, r)
	if err != nil {
		return c.growError(r, err)
	}
	if err := c.driverRanges.add(p, bytes); err != nil {
		return c.growError(r, err)
	}
	// A new segment changes the cache's statistics and perhaps a peak, and is handed out in the same moment: nobody sees
	// it reserved and not in use.
	c.shards.lockAll()
	defer c.shards.unlockAll()
	s := r.shard
	m := s.arena.NewSegment(p, bytes, r.Kind, r.Pool)
	c.ledger.stats.Segment.add(r.Kind, 1)
	c.ledger.stats.NumDeviceAlloc++
	if bytes >= c.shards.rules.MaxSplit {
		c.ledger.stats.OversizeSegments.add(1)
	}
	c.ledger.countReserved(r.Kind, bytes)
	c.shards.history.segment(ActionSegmentAlloc, p, bytes, s.id, r.stack)
	s.allocFresh(m, r)
	return nil
}

// allocFresh hands out memory for which the driver was asked. It is in no index yet, so that no other request takes it
// before. All shards are locked.
func (s *shard) allocFresh(m *placement.Chunk, r *request) {
	s.misses++
	fit := s.arena.Fit(m, &r.Want)
	var d delta
	s.handOutDelta(r, &fit, &d)
	s.handOut(m, r, &fit, &d)
	s.shards.ledger.raisePeaks(s, r.Kind, &d)
}

// countReserved counts memory from the driver. shards.mu is held.
func (l *ledger) countReserved(k placement.Kind, bytes int64) {
	l.stats.ReservedBytes.add(k, bytes)
	for _, scope := range l.openScopes {
		scope.window.Reserved.Peak = max(scope.window.Reserved.Peak, l.stats.ReservedBytes.All.Current)
	}
}

// growError is what the request is told when the driver, or its figures, failed it.
func (c *Cache) growError(r *request, err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		c.shards.history.mark(ActionRefused, r.shard.id, r.segmentBytes)
		return c.outOfMemory(r, err)
	}
	return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.Requested), err)
}

// driverAlloc calls the driver, beside the observer. Only the growth lock is held.
func (c *Cache) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := c.reporter.start(ctx, OpDriverAlloc)
	p, err := c.dev.Alloc(bytes)
	c.reporter.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.Kind.String(), Err: err})
	return p, err
}
