package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// EmptyCache waits for the frees that are pending and returns every free segment to the driver
// (torch.cuda.empty_cache). Segments with a block in use stay.
func (c *Cache) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer c.verify()
	}
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
	if c.isClosed() {
		return fmt.Errorf("memcache: EmptyCache: %w", ErrClosed)
	}
	return c.flush(ctx)
}

// flush waits for the pending frees and returns every free segment (release_cached_blocks). The growth lock
// is held.
func (c *Cache) flush(ctx context.Context) error {
	c.all.Lock()
	c.stats.NumSyncAllStreams++
	c.all.Unlock()
	waitCtx, op := c.start(ctx, OpSynchronize)
	err := c.settle(waitCtx)
	c.end(op, Event{Op: OpSynchronize, Err: err})
	if err != nil {
		return err
	}

	free, expandable := c.takeFree()
	err = c.driverFreeAll(ctx, free)
	for _, m := range expandable {
		if err == nil {
			err = c.shrink(ctx, m)
		} else {
			c.putBack(m)
		}
	}
	return errors.Join(err, c.unreserve())
}

// takeFree takes out of the index what a flush gives back: whole segments, the large pool first, and free
// blocks of expandable segments that have a whole granule.
func (c *Cache) takeFree() (free, expandable []*meta) {
	c.lockAll()
	defer c.unlockAll()
	for _, kind := range []poolKind{largePool, smallPool} {
		for _, s := range c.table.Load().list {
			from := [2]int{len(free), len(expandable)}
			s.free[kind].all(func(m *meta) {
				if m.segment.expandable {
					if from, to := c.granules(m); from >= to {
						return
					}
					expandable = append(expandable, m)
				} else if m.whole() {
					free = append(free, m)
				}
			})
			s.takeOut(free[from[0]:])
			s.takeOut(expandable[from[1]:])
		}
	}
	return free, expandable
}

// takeOut takes blocks out of the index, so that nobody hands them out. s.mu is held.
func (s *shard) takeOut(blocks []*meta) {
	for _, m := range blocks {
		s.free[m.kind].remove(m)
	}
}

// putBack undoes takeOut for a block, whose age goes on.
func (c *Cache) putBack(m *meta) {
	s := m.lock()
	defer s.mu.Unlock()
	born := m.born
	s.rejoin(m)
	m.born = born
}

// rejoin makes a block free that was out of the index while no lock was held, in which its neighbours may
// have become free: only parts of expandable segments have neighbours then, and those change no gauge. s.mu
// is held.
func (s *shard) rejoin(m *meta) {
	for _, n := range [2]*meta{m.prev, m.next} {
		if n.mergeable() {
			s.absorb(m, n)
		}
	}
	s.makeFree(m)
}

// unreserve gives the addresses of expandable segments back that have no memory any more.
func (c *Cache) unreserve() error {
	if !c.config.ExpandableSegments {
		return nil
	}
	c.lockAll()
	var empty []*segment
	for _, s := range c.table.Load().list {
		for _, seg := range s.segments {
			if m := seg.first; m.unmapped && m.whole() {
				empty = append(empty, seg)
				s.unmapped[m.kind].remove(m)
				delete(s.segments, seg.ptr)
				s.recycle(m)
			}
		}
	}
	c.unlockAll()
	var errs []error
	for _, s := range empty {
		errs = append(errs, c.vmm.Unreserve(s.ptr))
	}
	return errors.Join(errs...)
}

// driverFreeAll returns segments, whose blocks are not in the index, to the driver. After an error the others
// stay. The growth lock is held.
func (c *Cache) driverFreeAll(ctx context.Context, blocks []*meta) error {
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

// driverFree returns a segment, whose block is not in the index, to the driver (release_block). The growth
// lock is held.
func (c *Cache) driverFree(ctx context.Context, s *segment) error {
	m := s.first
	_, op := c.start(ctx, OpDriverFree)
	err := c.dev.Free(s.ptr)
	c.end(op, Event{Op: OpDriverFree, Stream: m.shard.Load().id, Bytes: s.bytes, Pool: m.kind.String(), Err: err})
	if err != nil {
		return fmt.Errorf("memcache: returning a segment of %s: %w", formatBytes(s.bytes), err)
	}
	c.lockAll()
	defer c.unlockAll()
	c.stats.NumDeviceFree++
	c.stats.Segment.sub(m.kind, 1)
	c.stats.ReservedBytes.sub(m.kind, s.bytes)
	if s.bytes >= c.rules.maxSplit {
		c.stats.OversizeSegments.sub(1)
	}
	owner := m.shard.Load()
	delete(owner.segments, s.ptr)
	owner.recycle(m)
	return nil
}
