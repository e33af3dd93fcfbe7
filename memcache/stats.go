package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// Where statistics are kept. Statistics that hits change are in the shards (usage, and
// shardCounts), and are summed when they are read. Statistics of driver operations are in
// ledger.stats, under shards.mu: segments, reserved bytes, calls, failures. The peaks of the former
// are in ledger.peaks. All sums count from New on; the sums of a retired shard move to another one.
// A reset stores the sums at that moment (ledger.beforeReset), and readers get the difference.
// Since adds them again, so that it can compare two readings across another caller's reset.

// Stat is one quantity of PyTorch's memory_stats.
type Stat struct {
	Current   int64 // now
	Peak      int64 // the largest Current since New or ResetPeakStats
	Allocated int64 // the sum of all increases since New or ResetAccumulatedStats
	Freed     int64 // the sum of all decreases since then
}

// StatArray is a quantity over all blocks, and over the blocks of each pool.
type StatArray struct{ All, SmallPool, LargePool Stat }

// PoolBytes is a number of bytes for both kinds of pool together, and for each.
type PoolBytes struct{ All, SmallPool, LargePool int64 }

func (b *PoolBytes) add(k placement.Kind, n int64) {
	b.All += n
	if k == placement.Small {
		b.SmallPool += n
	} else {
		b.LargePool += n
	}
}

// Stats contains PyTorch's statistics of one device (torch.cuda.memory_stats), under PyTorch's
// names, and a few further ones. Counts are numbers of blocks, segments or calls; the others are
// bytes.
type Stats struct {
	Allocation         StatArray // blocks allocated and not freed
	AllocatedBytes     StatArray // their bytes
	Segment            StatArray // segments held from the driver
	ReservedBytes      StatArray // their bytes
	Active             StatArray // blocks allocated, or freed and waiting for a recorded stream
	ActiveBytes        StatArray // their bytes
	InactiveSplit      StatArray // free blocks that are only a part of their segment, which stays
	InactiveSplitBytes StatArray // their bytes
	RequestedBytes     StatArray // requested bytes of the active blocks, before rounding

	OversizeAllocations Stat // allocated blocks of at least MaxSplitSize bytes; 0 if unlimited
	OversizeSegments    Stat // segments of that size that are not expandable; 0 if unlimited

	NumAllocRetries   int64 // driver allocations retried after a flush, successful or not
	NumOOMs           int64 // requests that failed
	NumOOMRejections  int64 // of NumOOMs, those that Config.ThrowOnCudaMallocOOM has refused
	NumSyncAllStreams int64 // flushes, each of which waits for every pending free
	NumDeviceAlloc    int64 // successful driver allocations: segments and expandable mappings
	NumDeviceFree     int64 // the driver's frees
	MaxSplitSize      int64 // -1: unlimited

	// ReservedBytesByPrivatePools is the part of ReservedBytes that belongs to each unreleased
	// private pool, counted since NewPool, as in Pool.Stats.
	ReservedBytesByPrivatePools map[PoolID]StatArray

	// GraphBytes is the memory that private pools keep for graphs: the free memory of unreleased
	// pools whose blocks a captured stream has allocated or used. It is reserved and not active,
	// and serves only captures in its pool. GraphSplitBytes is the part of it in
	// InactiveSplitBytes. Both are 0 in Pool.Stats. PyTorch has no such figures.
	GraphBytes, GraphSplitBytes PoolBytes

	// NumStreamReuses is the number of requests that were served from memory that other streams
	// were still using: Config.ReuseAcrossStreams.
	NumStreamReuses int64

	// AccountingFaults is the number of times that a counter of any cache or pool of this process
	// fell below zero. Each is a bug in Cistern, and is also logged (log/slog).
	AccountingFaults int64

	Hits   int64 // requests served without a driver allocation
	Misses int64 // requests that needed one, or failed
	Splits int64 // blocks split in two
	Merges int64 // free blocks absorbed by a freed neighbour

	// beforeReset contains the sums and counts from New to the last ResetAccumulatedStats; nil if
	// there was none. It is immutable and replaced as a whole.
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

// ofKind returns the statistic of a kind of pool.
func (a *StatArray) ofKind(k placement.Kind) *Stat {
	if k == placement.Small {
		return &a.SmallPool
	}
	return &a.LargePool
}

// add counts an increase in the kind and in All.
func (a *StatArray) add(k placement.Kind, n int64) {
	a.All.add(n)
	a.ofKind(k).add(n)
}

// sub counts a decrease in the kind and in All.
func (a *StatArray) sub(k placement.Kind, n int64) {
	a.All.sub(n)
	a.ofKind(k).sub(n)
}

// quantities returns all fields of type Stat, in a fixed order.
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

// counts returns the counts that only grow, in a fixed order.
func (s *Stats) counts() [11]*int64 {
	return [...]*int64{
		&s.NumAllocRetries, &s.NumOOMs, &s.NumSyncAllStreams, &s.NumDeviceAlloc, &s.NumDeviceFree,
		&s.Hits, &s.Misses, &s.Splits, &s.Merges, &s.NumStreamReuses, &s.NumOOMRejections,
	}
}

// Since returns s with everything that only grows, which is Allocated and Freed of each Stat and
// the counts, reduced by its value in then. then must be earlier statistics of the same cache.
// ResetAccumulatedStats before or between the two makes no difference. Since(Stats{}) counts from
// New on.
func (s Stats) Since(then Stats) Stats {
	// Both are converted to counts since New before the subtraction.
	s.addSums(s.beforeReset, 1)
	s.addSums(then.beforeReset, -1)
	s.addSums(&then, -1)
	s.beforeReset = nil
	return s
}

// addSums adds sign times the sums and counts of o, unless o is nil.
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
