package memcache

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The figures of a cache: statistics, peaks and the owners of memory. Stats, Profile and Snapshot
// are their types.

// Stats returns a consistent copy of the statistics. Frees that are complete but were not yet
// polled still count as active, as in PyTorch; [Cache.PollFrees] polls them.
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

// ResetPeakStats sets every peak to the current value (reset_peak_memory_stats). Scopes are
// unaffected.
func (c *Cache) ResetPeakStats() {
	if invariants.Enabled {
		defer c.verify()
	}
	_ = c.shards.history.stream().admit(context.Background(), 0)
	c.shards.lockAll()
	defer c.shards.unlockAll()
	// Each shard's quota becomes what the shard uses, so the sums of the quotas, which are the
	// peaks, become the current use.
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

// ResetAccumulatedStats zeroes everything that only grows (reset_accumulated_memory_stats):
// Allocated and Freed of each Stat, and the counts. Scopes and [Stats.Since] are unaffected.
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

// MemoryAllocated returns the bytes of all blocks that are allocated and not freed
// (torch.cuda.memory_allocated). If other goroutines allocate or free meanwhile, each stream's part
// is its value at some moment during the call. It takes no lock.
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

// LargestFree returns the sizes, in bytes, of the largest free blocks for small and for large
// requests on any stream, without private pools; 0 if there is none. A larger request needs the
// driver. Requests block while LargestFree searches each stream's free blocks.
func (c *Cache) LargestFree() (small, large int64) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	for _, s := range c.shards.list() {
		small = max(small, s.arena.Largest(&placement.Want{Kind: placement.Small}))
		large = max(large, s.arena.Largest(&placement.Want{Kind: placement.Large}))
	}
	return small, large
}

// Profile returns the owners of the memory that is allocated now. Requests block while it walks the
// blocks.
func (c *Cache) Profile() Profile { return c.ledger.profile() }

// PeakProfile returns the owners of the memory at the moment when MaxMemoryAllocated was first
// reached since New or ResetPeakStats. Its holdings add up to that peak to the byte, even if blocks
// were freed since. With several goroutines it reflects one possible order of events, which keeps
// the order of every stream. Requests block while it walks the blocks.
func (c *Cache) PeakProfile() Profile {
	c.shards.lockAll()
	notes, mark := c.ledger.notesOfPeak(func(s *shard) *peakLog { return &s.peak }), c.ledger.peak
	c.shards.unlockAll()
	return newProfile(notes, mark)
}

// AllocatedByCategory returns the bytes of [Cache.MemoryAllocated] by [Category]; unknown
// categories count as CategoryOther. Requests block while it walks the blocks, some nanoseconds
// each.
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

// Snapshot returns the segments and blocks, and the history up to that moment. Requests block while
// it copies the blocks, some 50 ns each, but not while it copies the history. If the program
// continues meanwhile, it may overwrite the oldest history entries before they are copied.
func (c *Cache) Snapshot() Snapshot {
	c.shards.lockAll()
	s, ring, end := c.shards.snapshot()
	c.shards.unlockAll()
	if ring != nil {
		s.History = ring.before(end)
	}
	return s
}

// snapshot is Snapshot without the history, which is in ring up to its end-th entry. All shards are
// locked.
func (all *shards) snapshot() (s Snapshot, ring *historyRing, end int) {
	s = Snapshot{Device: all.cache.dev.Name(), Segments: all.copySegments()}
	if ring = all.history.ring(); ring != nil {
		end = ring.added()
		ring.add(HistoryEntry{Action: ActionSnapshot, Size: all.ledger.sumGauge(allPools, gaugeActiveBytes).Current, Time: time.Now()})
	}
	return s, ring, end
}
