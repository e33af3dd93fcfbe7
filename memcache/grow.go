package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// grow asks the driver for a segment and serves the request from it (alloc_block). The growth lock is held.
func (c *Cache) grow(ctx context.Context, r *request, retry bool) (*chunk, error) {
	bytes := r.segmentBytes
	c.mu.Lock()
	if retry {
		c.stats.NumAllocRetries++
	}
	limited := c.limit < bytes || c.stats.ReservedBytes.All.Current > c.limit-bytes
	c.mu.Unlock()
	if limited {
		return nil, c.outOfMemory(r, nil)
	}
	if c.config.ExpandableSegments {
		return c.expand(ctx, r)
	}
	p, err := c.driverAlloc(ctx, bytes, r)
	if err != nil {
		return nil, c.growError(r, err)
	}
	if err := c.driverRanges.add(p, bytes); err != nil {
		return nil, c.growError(r, err)
	}
	c.lockAll()
	defer c.unlockAll()
	s := r.shard
	m := s.newChunk()
	m.segment = &segment{ptr: p, bytes: bytes, first: m}
	m.ptr, m.size, m.kind = p, bytes, r.kind
	s.addSegment(m.segment, r.pool)
	c.stats.Segment.add(r.kind, 1)
	c.stats.NumDeviceAlloc++
	if bytes >= c.sizing.maxSplit {
		c.stats.OversizeSegments.add(1)
	}
	c.countReserved(r.kind, bytes)
	c.recordSegment(ActionSegmentAlloc, p, bytes, s.id, r.stack)
	return s.allocFresh(m, r), nil
}

// first hands out a block for which the driver was asked. All shards are locked.
func (s *shard) allocFresh(m *chunk, r *request) *chunk {
	s.misses++
	split := s.cache.shouldSplit(m, r)
	var d delta
	s.handOutDelta(m, r, split, &d)
	m = s.handOut(m, r, split, &d)
	s.cache.raisePeaks(s, r.kind)
	return m
}

// reserve counts memory from the driver. c.all is held.
func (c *Cache) countReserved(k poolKind, bytes int64) {
	c.stats.ReservedBytes.add(k, bytes)
	for _, scope := range c.openScopes {
		scope.window.Reserved.Peak = max(scope.window.Reserved.Peak, c.stats.ReservedBytes.All.Current)
	}
}

func (c *Cache) growError(r *request, err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		return c.outOfMemory(r, err)
	}
	return fmt.Errorf("memcache: Alloc of %s: %w", formatBytes(r.bytes), err)
}

func (c *Cache) driverAlloc(ctx context.Context, bytes int64, r *request) (device.Ptr, error) {
	_, op := c.start(ctx, OpDriverAlloc)
	p, err := c.dev.Alloc(bytes)
	c.end(op, OpInfo{Op: OpDriverAlloc, Stream: r.shard.id, Bytes: bytes, Pool: r.kind.String(), Err: err})
	return p, err
}
