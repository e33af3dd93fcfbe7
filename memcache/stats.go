package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Where a statistic is kept. What hits change is in the shards (usage, and the counts of shard), and is summed up when
// somebody asks. What needs the driver is in ledger.stats, under shards.mu: segments, bytes reserved, calls, failures. Peaks
// are in ledger.peaks, for the former. Sums that only grow stay right when a shard is retired (retiredTotals, baseCounts),
// and are counted from the last reset on (resetBaseline); Since adds what was before it, so that two readings of
// somebody else's reset can still be compared.

// Stat is one quantity of PyTorch's memory_stats.
type Stat struct {
	Current   int64 // now
	Peak      int64 // the largest Current since New or ResetPeakStats
	Allocated int64 // the sum of all increases since New or ResetAccumulatedStats
	Freed     int64 // the sum of all decreases since then
}

// StatArray is a quantity over all blocks, and over those of each pool.
type StatArray struct{ All, SmallPool, LargePool Stat }

// Stats are PyTorch's statistics of one device (torch.cuda.memory_stats), under PyTorch's names, and a few
// of our own. Counts are numbers of blocks, segments or calls; the others are bytes.
type Stats struct {
	Allocation         StatArray // blocks handed out and not freed
	AllocatedBytes     StatArray // their bytes
	Segment            StatArray // segments held from the driver
	ReservedBytes      StatArray // their bytes
	Active             StatArray // blocks handed out, or freed and waiting for a recorded stream
	ActiveBytes        StatArray // their bytes
	InactiveSplit      StatArray // free blocks that are a part of a segment, so that it can't be released
	InactiveSplitBytes StatArray // their bytes
	RequestedBytes     StatArray // what callers asked for the active blocks, before rounding

	OversizeAllocations Stat // blocks handed out of at least MaxSplitSize bytes; 0 where that is unlimited
	OversizeSegments    Stat // segments of at least MaxSplitSize bytes, none of expandable ones; 0 where that is unlimited

	NumAllocRetries   int64 // driver allocations tried again after a flush
	NumOOMs           int64 // requests that failed
	NumSyncAllStreams int64 // flushes, each of which waits for every pending free
	NumDeviceAlloc    int64 // the driver's allocations
	NumDeviceFree     int64 // the driver's frees
	MaxSplitSize      int64 // -1: unlimited

	Hits   int64 // requests served without a driver allocation
	Misses int64 // requests that needed one, or failed
	Splits int64 // blocks split in two
	Merges int64 // free blocks absorbed by a freed neighbour

	// beforeReset has the sums and counts from New up to the last ResetAccumulatedStats; nil if there was none. It is never
	// changed, but replaced.
	beforeReset *Stats
}

// add counts an increase. shards.mu is held.
func (s *Stat) add(n int64) {
	s.Current += n
	s.Allocated += n
	s.Peak = max(s.Peak, s.Current)
}

// sub counts a decrease. shards.mu is held.
func (s *Stat) sub(n int64) {
	s.Current -= n
	s.Freed += n
	notNegative("a statistic", s.Current)
}

// ofKind is the statistic of a kind of pool.
func (a *StatArray) ofKind(k placement.Kind) *Stat {
	if k == placement.Small {
		return &a.SmallPool
	}
	return &a.LargePool
}

// add counts an increase, of the kind and of all together.
func (a *StatArray) add(k placement.Kind, n int64) {
	a.All.add(n)
	a.ofKind(k).add(n)
}

// sub counts a decrease, of the kind and of all together.
func (a *StatArray) sub(k placement.Kind, n int64) {
	a.All.sub(n)
	a.ofKind(k).sub(n)
}

// quantities are all that a Stats has of Stat, in one order.
func (s *Stats) quantities() [29]*Stat {
	var list [29]*Stat
	for i, a := range [...]*StatArray{
		&s.Allocation, &s.AllocatedBytes, &s.Segment, &s.ReservedBytes, &s.Active, &s.ActiveBytes,
		&s.InactiveSplit, &s.InactiveSplitBytes, &s.RequestedBytes,
	} {
		list[3*i], list[3*i+1], list[3*i+2] = &a.All, &a.SmallPool, &a.LargePool
	}
	list[27], list[28] = &s.OversizeAllocations, &s.OversizeSegments
	return list
}

// counts are the numbers that only grow, in one order.
func (s *Stats) counts() [9]*int64 {
	return [...]*int64{
		&s.NumAllocRetries, &s.NumOOMs, &s.NumSyncAllStreams, &s.NumDeviceAlloc, &s.NumDeviceFree,
		&s.Hits, &s.Misses, &s.Splits, &s.Merges,
	}
}

// Since returns s with what only grows counted from then on: Allocated and Freed of each Stat, and the counts, less what
// they were in then, which are earlier statistics of the same cache. ResetAccumulatedStats in between, or before, makes
// no difference. Since(Stats{}) counts from New on.
func (s Stats) Since(then Stats) Stats {
	// Both are counted from New on, then subtracted.
	s.addSums(s.beforeReset, 1)
	s.addSums(then.beforeReset, -1)
	s.addSums(&then, -1)
	s.beforeReset = nil
	return s
}

// addSums adds sign times the sums and counts of o, if there are any.
func (s *Stats) addSums(o *Stats, sign int64) {
	if o == nil {
		return
	}
	theirs := o.quantities()
	for i, q := range s.quantities() {
		q.Allocated += sign * theirs[i].Allocated
		q.Freed += sign * theirs[i].Freed
	}
	counts := o.counts()
	for i, n := range s.counts() {
		*n += sign * *counts[i]
	}
}

// Stats returns a consistent copy of the statistics. Frees that are complete but were not yet noticed still
// count as active, as in PyTorch.
func (c *Cache) Stats() Stats {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	return c.ledger.sumStats()
}

// sumStats adds the shards' gauges to what the cache counts itself. All shards are locked: what it returns was true at one
// moment.
func (l *ledger) sumStats() Stats {
	s := l.stats
	array := func(g gauge) StatArray {
		return StatArray{All: l.sumGauge(allPools, g), SmallPool: l.sumGauge(int(placement.Small), g), LargePool: l.sumGauge(int(placement.Large), g)}
	}
	s.Allocation, s.AllocatedBytes = array(gaugeAllocatedBlocks), array(gaugeAllocatedBytes)
	s.Active, s.ActiveBytes = array(gaugeActiveBlocks), array(gaugeActiveBytes)
	s.InactiveSplit, s.InactiveSplitBytes = array(gaugeInactiveSplitBlocks), array(gaugeInactiveSplitBytes)
	s.RequestedBytes = array(gaugeRequestedBytes)
	s.OversizeAllocations = l.sumGauge(allPools, gaugeOversizeBlocks)
	n := l.baseCounts
	for _, sh := range l.shards.list() {
		n.add(sh)
	}
	s.Hits, s.Misses, s.Splits, s.Merges = n.hits, n.misses, n.splits, n.merges
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
	c.ledger.markPeak(&c.ledger.peak, func(s *shard) *peakLog { return &s.peak })
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
	total := c.ledger.sumStats().Since(Stats{})
	c.ledger.stats.beforeReset = &total
	for _, s := range c.ledger.stats.quantities() {
		s.Allocated, s.Freed = 0, 0
	}
	for _, n := range c.ledger.stats.counts() {
		*n = 0
	}
	c.ledger.retiredTotals, c.ledger.baseCounts, c.ledger.resetBaseline = [2]delta{}, shardCounts{}, [rows]delta{}
	// Freed is what was allocated less what is in use: what is in use now was not allocated since.
	for _, s := range c.shards.list() {
		s.increases = [2]delta{}
		s.hits, s.misses, s.splits, s.merges = 0, 0, 0, 0
		for row := range s.quota {
			for g := range gauges {
				c.ledger.resetBaseline[row][g] -= s.inUse(row, g)
			}
		}
	}
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

// reserved takes the lock of what only the driver's calls change.
func (l *ledger) reserved() Stat {
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	return l.stats.ReservedBytes.All
}
