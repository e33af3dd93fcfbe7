package memcache

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// What a cache tells: statistics, peaks, who holds the memory, all of it. Stats, Profile and Snapshot say in which words.

// Stats returns a consistent copy of the statistics. Frees that are complete but were not yet noticed still
// count as active, as in PyTorch; [Cache.PollFrees] notices them.
func (c *Cache) Stats() Stats {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	s := c.ledger.sinceReset()
	for id, p := range c.openPools {
		if s.ReservedBytesByPrivatePools == nil {
			s.ReservedBytesByPrivatePools = make(map[PoolID]StatArray, len(c.openPools))
		}
		s.ReservedBytesByPrivatePools[id] = p.Stats().ReservedBytes
	}
	s.GraphBytes, s.GraphSplitBytes = c.ledger.heldByGraphs()
	return s
}

// ResetPeakStats sets every peak to the current value (reset_peak_memory_stats). Scopes are unaffected.
func (c *Cache) ResetPeakStats() {
	if invariants.Enabled {
		defer c.verify()
	}
	_ = c.shards.history.stream().admit(context.Background(), 0)
	c.shards.lockAll()
	defer c.shards.unlockAll()
	// Every shard's quota becomes its use, and so their sums, the peaks, become what is in use now.
	for _, s := range c.ledger.stats.quantities() {
		s.Peak = s.Current
	}
	c.ledger.peaks = [rows]delta{}
	for _, s := range c.shards.list() {
		for row := range s.quota {
			for g := range gauges {
				s.quota[row][g] = s.inUse(row, g)
				c.ledger.peaks[row][g] += s.inUse(row, g)
			}
		}
	}
	c.ledger.markPeak(&c.ledger.peak, nil, &delta{}, func(s *shard) *peakLog { return &s.peak })
	c.shards.history.mark(ActionResetPeaks, 0, 0)
}

// ResetAccumulatedStats zeroes everything that only grows (reset_accumulated_memory_stats): Allocated and
// Freed of each Stat, and the counts. Scopes are unaffected, and so is [Stats.Since].
func (c *Cache) ResetAccumulatedStats() {
	if invariants.Enabled {
		defer c.verify()
	}
	_ = c.shards.history.stream().admit(context.Background(), 0)
	c.shards.lockAll()
	defer c.shards.unlockAll()
	total := c.ledger.sumStats()
	c.ledger.beforeReset = &total
	c.shards.history.mark(ActionResetTotals, 0, 0)
}

// MemoryAllocated returns the bytes of all blocks handed out and not freed (torch.cuda.memory_allocated).
// Beside goroutines that allocate and free, each stream's share is what it was at some moment of the call. No lock is taken.
func (c *Cache) MemoryAllocated() (bytes int64) {
	for _, s := range c.shards.list() {
		bytes += s.allocated.Load()
	}
	return bytes
}

// MaxMemoryAllocated returns the largest MemoryAllocated since New or ResetPeakStats.
func (c *Cache) MaxMemoryAllocated() int64 {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	return c.ledger.peaks[allPools][gaugeAllocatedBytes]
}

// MemoryReserved returns the bytes held from the driver (torch.cuda.memory_reserved).
func (c *Cache) MemoryReserved() int64 { return c.ledger.reserved().Current }

// MaxMemoryReserved returns the largest MemoryReserved since New or ResetPeakStats.
func (c *Cache) MaxMemoryReserved() int64 { return c.ledger.reserved().Peak }

// LargestFree returns the sizes, in bytes, of the largest free blocks that small and large requests
// find on any stream, private pools aside; 0 where there is none. A request for more needs the
// driver. Requests wait while LargestFree looks at each stream's free blocks.
func (c *Cache) LargestFree() (small, large int64) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	for _, s := range c.shards.list() {
		small = max(small, s.arena.Largest(&placement.Want{Kind: placement.Small}))
		large = max(large, s.arena.Largest(&placement.Want{Kind: placement.Large}))
	}
	return small, large
}

// Profile returns who holds what is allocated now. Requests wait while the blocks are walked.
func (c *Cache) Profile() Profile { return c.ledger.profile() }

// PeakProfile returns who held the memory when MaxMemoryAllocated was reached for the first time since New or
// ResetPeakStats. Its holdings add up to that peak to the byte, whatever was freed since. Of several goroutines it is one
// order of what happened, in which every stream's own order holds. Requests wait while the blocks are walked.
func (c *Cache) PeakProfile() Profile {
	c.shards.lockAll()
	notes, mark := c.ledger.notesOfPeak(func(s *shard) *peakLog { return &s.peak }), c.ledger.peak
	c.shards.unlockAll()
	return newProfile(notes, mark)
}

// AllocatedByCategory are the bytes of [Cache.MemoryAllocated] by [Category]; what is of no known one counts as
// CategoryOther. Requests wait while the blocks are walked, some nanoseconds each.
func (c *Cache) AllocatedByCategory() (bytes [CategoryWorkspace + 1]int64) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	for _, s := range c.shards.list() {
		s.eachLive(func(h *handout) {
			category := CategoryOther
			if h.label != nil && int(h.label.Category) < len(bytes) {
				category = h.label.Category
			}
			bytes[category] += h.chunk.Size()
		})
	}
	return bytes
}

// Snapshot returns the segments and blocks, and the history up to that moment. It holds up allocations while it copies the
// blocks, some 50 ns each, and not while it copies the history, of which a program that goes on overwrites the oldest part.
func (c *Cache) Snapshot() Snapshot {
	c.shards.lockAll()
	s, ring, end := c.shards.snapshot()
	c.shards.unlockAll()
	if ring != nil {
		s.History = ring.before(end)
	}
	return s
}

// snapshot is Snapshot without the history: the ring has that, up to its end-th entry. All shards
// are locked.
func (all *shards) snapshot() (s Snapshot, ring *historyRing, end int) {
	s = Snapshot{Device: all.cache.dev.Name(), Segments: all.copySegments()}
	if ring = all.history.ring(); ring != nil {
		end = ring.added()
		ring.add(HistoryEntry{Action: ActionSnapshot, Size: all.ledger.sumGauge(allPools, gaugeActiveBytes).Current, Time: time.Now()})
	}
	return s, ring, end
}
