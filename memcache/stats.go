package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// Where a statistic is kept. What hits change is in the shards (usage, and shardCounts), and is summed up when somebody
// asks. What needs the driver is in ledger.stats, under shards.mu: segments, bytes reserved, calls, failures. Peaks are in
// ledger.peaks, for the former. All sums count from New on, also those of a shard that is retired, which another one takes
// over; a reset notes what they were (ledger.beforeReset), and what is told is the difference. Since adds it again, so that
// two readings of somebody else's reset can still be compared.

// Stat is one quantity of PyTorch's memory_stats.
type Stat struct {
	Current   int64 // now
	Peak      int64 // the largest Current since New or ResetPeakStats
	Allocated int64 // the sum of all increases since New or ResetAccumulatedStats
	Freed     int64 // the sum of all decreases since then
}

// StatArray is a quantity over all blocks, and over those of each pool.
type StatArray struct{ All, SmallPool, LargePool Stat }

// PoolBytes are bytes of both kinds of pool, and of each.
type PoolBytes struct{ All, SmallPool, LargePool int64 }

func (b *PoolBytes) add(k placement.Kind, n int64) {
	b.All += n
	if k == placement.Small {
		b.SmallPool += n
	} else {
		b.LargePool += n
	}
}

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

	NumAllocRetries   int64 // driver allocations repeated after a flush, also those that failed again
	NumOOMs           int64 // requests that failed
	NumOOMRejections  int64 // of them, those that Config.ThrowOnCudaMallocOOM refused before the driver was asked
	NumSyncAllStreams int64 // flushes, each of which waits for every pending free
	NumDeviceAlloc    int64 // the driver's allocations that succeeded, of segments and of memory mapped into expandable ones
	NumDeviceFree     int64 // the driver's frees
	MaxSplitSize      int64 // -1: unlimited

	// ReservedBytesByPrivatePools is the part of ReservedBytes that belongs to each unreleased private
	// pool, counted since NewPool, as in Pool.Stats.
	ReservedBytesByPrivatePools map[PoolID]StatArray

	// GraphBytes are what private pools keep for graphs: the free memory of unreleased pools whose
	// blocks a captured stream has allocated or used. It is reserved and not active, and serves
	// captures in its pool alone. GraphSplitBytes are the part of it in InactiveSplitBytes. Both
	// are the cache's alone, and 0 in Pool.Stats; PyTorch has no such figures.
	GraphBytes, GraphSplitBytes PoolBytes

	// NumStreamReuses are the requests that were served from memory that other streams were still
	// using: Config.ReuseAcrossStreams.
	NumStreamReuses int64

	// AccountingFaults are the counts of this process, of any cache or pool, that fell below zero: each is a
	// mistake of Cistern, which the log has, too (log/slog).
	AccountingFaults int64

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
func (s *Stats) counts() [11]*int64 {
	return [...]*int64{
		&s.NumAllocRetries, &s.NumOOMs, &s.NumSyncAllStreams, &s.NumDeviceAlloc, &s.NumDeviceFree,
		&s.Hits, &s.Misses, &s.Splits, &s.Merges, &s.NumStreamReuses, &s.NumOOMRejections,
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
