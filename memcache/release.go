package memcache

import (
	"context"
	"fmt"
)

// EmptyCache waits for the frees that are pending and returns every free segment to the driver
// (torch.cuda.empty_cache). Segments with a block in use stay.
func (c *Cache) EmptyCache(ctx context.Context) error {
	ctx, op := c.start(ctx, OpEmptyCache)
	err := c.emptyCache(ctx)
	c.end(op, Event{Op: OpEmptyCache, Err: err})
	return err
}

func (c *Cache) emptyCache(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memcache: EmptyCache: %w", err)
	}
	if err := c.lockGrowth(ctx); err != nil {
		return err
	}
	defer c.unlockGrowth()
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return fmt.Errorf("memcache: EmptyCache: %w", ErrClosed)
	}
	return c.flush(ctx)
}

// flush waits for the pending frees and returns every free segment (release_cached_blocks). The growth lock
// is held.
func (c *Cache) flush(ctx context.Context) error {
	c.mu.Lock()
	c.stats.NumSyncAllStreams++
	c.mu.Unlock()
	waitCtx, op := c.start(ctx, OpSynchronize)
	err := c.settle(waitCtx)
	c.end(op, Event{Op: OpSynchronize, Err: err})
	if err != nil {
		return err
	}

	var free []*meta
	c.mu.Lock()
	for _, kind := range []poolKind{largePool, smallPool} {
		c.free[kind].all(func(m *meta) {
			if m.whole() {
				free = append(free, m)
			}
		})
	}
	for _, m := range free {
		c.free[m.kind].remove(m)
	}
	c.mu.Unlock()
	for i, m := range free {
		if err := c.driverFree(ctx, m.segment); err != nil {
			c.mu.Lock()
			for _, m := range free[i:] {
				c.free[m.kind].insert(m)
			}
			c.mu.Unlock()
			return err
		}
	}
	return nil
}

// driverFree returns a segment, whose block is not in the index, to the driver (release_block). The growth
// lock is held.
func (c *Cache) driverFree(ctx context.Context, s *segment) error {
	m := s.first
	_, op := c.start(ctx, OpDriverFree)
	err := c.dev.Free(s.ptr)
	c.end(op, Event{Op: OpDriverFree, Stream: m.stream, Bytes: s.bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: returning a segment of %s: %w", formatBytes(s.bytes), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.NumDeviceFree++
	c.stats.Segment.sub(m.kind, 1)
	c.stats.ReservedBytes.sub(m.kind, s.bytes)
	delete(c.segments, s.ptr)
	c.recycle(m)
	return nil
}
