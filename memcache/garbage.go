package memcache

import (
	"context"
	"math"
)

// Memory that goes back to the driver before it has to: old segments, while garbage collection is armed, and segments that
// are too large to be split, in place of a flush of everything.

// gcArmed reports whether garbage collection is armed: it has a threshold, and a limit that the threshold is a share of.
// c.mu is held.
func (c *Cache) gcArmed() bool { return c.config.GarbageCollectionThreshold > 0 && c.limited() }

// collectGarbage returns old free segments of the large pool, of no private one, while more than the threshold is reserved
// (garbage_collect_cached_blocks). A segment's age is the number of searches since it became free, by gcClock, which is
// advanced only while collection is armed; each pass frees those of at least the mean age. Segments that were used a
// moment ago stay, where a flush would return them too and the next step would ask the driver for them again. The growth
// lock is held; no shard is locked while the driver works.
func (c *Cache) collectGarbage(ctx context.Context) error {
	// All shards: the threshold is of what the whole cache has reserved, and the oldest segment may be any stream's.
	c.lockAll()
	if !c.gcArmed() {
		c.unlockAll()
		return nil
	}
	excess := c.stats.ReservedBytes.All.Current - int64(c.config.GarbageCollectionThreshold*float64(c.limit))
	var candidates []*chunk
	if excess > 0 {
		for _, s := range c.table.Load().list {
			s.free[largePool].each(func(m *chunk) {
				if m.isSegment() && !m.segment.expandable {
					candidates = append(candidates, m)
				}
			})
		}
	}
	// They are taken out of the index before the locks are given up, so that no hit takes them while the driver works.
	victims := oldest(candidates, excess, c.gcClock[largePool].Load())
	for _, m := range victims {
		m.segment.free.remove(m)
	}
	c.unlockAll()
	return c.driverFreeAll(ctx, victims)
}

// oldest chooses chunks of together at least excess bytes, or all, in passes that each take those of at least the mean age.
// now is the clock of the ages.
func oldest(candidates []*chunk, excess, now int64) (victims []*chunk) {
	// PyTorch's passes: the mean is of what is left, so that each pass goes down to younger ones.
	for excess > 0 && len(candidates) > 0 {
		var total int64
		for _, m := range candidates {
			total += now - m.freeSince
		}
		cut, count := float64(total)/float64(len(candidates)), len(victims)
		var younger []*chunk
		for _, m := range candidates {
			if float64(now-m.freeSince) >= cut {
				victims = append(victims, m)
				excess -= m.size
			} else {
				younger = append(younger, m)
			}
		}
		if len(victims) == count {
			break
		}
		candidates = younger
	}
	return victims
}

// releaseOversize returns one free segment that is large enough for the request and for max_split_size, or
// the largest ones that together are, and reports whether it did (release_available_cached_blocks). The
// growth lock is held.
func (c *Cache) releaseOversize(ctx context.Context, r *request) (bool, error) {
	if c.sizing.maxSplit == math.MaxInt64 {
		return false, nil
	}
	need := max(r.rounded, c.sizing.maxSplit)
	s := r.shard
	s.mu.Lock()
	l := s.listsFor(r.pool)
	if l == nil {
		s.mu.Unlock()
		return false, nil
	}
	// One segment that is large enough is best; else the largest ones, down to max_split_size, until they are enough. They go
	// back also if they are not, as in PyTorch.
	x := &l.free[r.kind]
	m := x.atLeast(need)
	var victims []*chunk
	enough := m != nil && !m.segment.expandable
	if enough {
		victims = append(victims, m)
	} else {
		var sum int64
		for m = x.before(m); m != nil && sum < need && m.size >= c.sizing.maxSplit; m = x.before(m) {
			if !m.segment.expandable {
				victims = append(victims, m)
				sum += m.size
			}
		}
		enough = sum >= need
	}
	takeOut(victims)
	s.mu.Unlock()
	return enough, c.driverFreeAll(ctx, victims)
}
