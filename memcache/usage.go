package memcache

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// gauge is one of the statistics that each shard keeps for itself. Statistics that change only with
// a driver call, such as the reserved bytes, are counted once for the cache, in ledger.stats.
type gauge uint8

// The gauges, under PyTorch's names: allocation, active, inactive_split, requested_bytes,
// oversize_allocations. Bytes are rounded, except requested ones. An allocated block is active too;
// a pending one is only active.
const (
	gaugeAllocatedBlocks gauge = iota
	gaugeAllocatedBytes
	gaugeActiveBlocks
	gaugeActiveBytes
	gaugeInactiveSplitBlocks
	gaugeInactiveSplitBytes
	gaugeRequestedBytes
	gaugeOversizeBlocks
	gauges
)

// The rows of a statistic: a placement.Kind, or allPools.
const (
	allPools = int(placement.Large) + 1
	rows     = allPools + 1
)

// delta is the change of a pool's gauges by an operation. Its eight numbers are one cache line.
type delta [gauges]int64

// usage is a shard's gauges, with its share of the peaks.
//
// PyTorch's statistics have a peak for each gauge, over all streams, for each pool kind and for
// both together. The simple implementation is a counter that all streams share: every hit would
// write the same cache lines, under one lock or with atomics, and goroutines on different streams
// would wait for each other. (With one lock for everything PyTorch serves 1.8 pairs of allocation
// and free per microsecond to one thread, and 0.28 to sixteen threads with a stream each.) Counters
// per shard that are summed from time to time miss the peaks in between, and a peak that is too low
// misleads the search for the cause of an out-of-memory error.
//
// Here peaks are exact, and hits share nothing. The sum of the shards' quotas is the peak, and no
// shard uses more than its quota. While both hold, no sum of uses exceeds the peak, whatever the
// shards do at the same time, and a hit only compares its own use with its own quota. An operation
// that would break this claims quota that other shards do not use or, if that is not enough, runs
// with all shards locked, where the true sum is known and the peak is raised; see quota.go. In a
// program whose steps repeat, the peak stops rising, and the slow path is no longer taken. The cost
// is that each operation must compute its changes before it makes them (handOutDelta, freeDelta),
// and comparisons for eight gauges, which are written without branches.
//
// An example, for one gauge and three shards (used/quota):
//
//	A 40/60, B 30/30, C 0/10, peak 100: the sum is 70, and was 100 before.
//	A takes 15: 55/60. Nothing else is read.
//	B takes 5: 35 > 30. B claims 5 of A's or C's unused quota, here C's: B 35/35, C 0/5.
//	B takes 20: 55 > 35. B claims A's 5 and C's 5, which is not enough. With all shards
//	locked the peak rises by the missing 10, to 110: A 55/55, B 55/55, C 0/0.
type usage struct {
	allocated atomic.Int64 // bytes of both kinds, for readers without the lock
	used      [2]delta     // by placement.Kind
	increases [2]delta     // by placement.Kind: the sum of all increases
	quota     [rows]delta  // by placement.Kind, and of both together
	// scopes are the quotas in the peaks of the open scopes, in the order of ledger.openScopes.
	scopes []scopeQuota
}

// scopeQuota is a shard's share of the peaks of one scope's window.
type scopeQuota struct {
	allocated, requested int64
	peak                 peakLog // of allocated
}

// lastScope returns the share in the scope that was opened last.
func (u *usage) lastScope() *scopeQuota { return &u.scopes[len(u.scopes)-1] }

// inUse returns a gauge's value in a row.
func (u *usage) inUse(row int, g gauge) int64 {
	if row == allPools {
		return u.used[placement.Small][g] + u.used[placement.Large][g]
	}
	return u.used[row][g]
}

// increased returns the sum of a gauge's increases in a row.
func (u *usage) increased(row int, g gauge) int64 {
	if row == allPools {
		return u.increases[placement.Small][g] + u.increases[placement.Large][g]
	}
	return u.increases[row][g]
}

// tryAdd adds the delta to the gauges if every gauge then stays within its quota, and reports
// whether it did. It is on the path of every hit, so it is unrolled, and has no branch for each
// gauge. s.mu is held.
func (u *usage) tryAdd(k placement.Kind, d *delta) bool {
	used, other, pool, all, up := &u.used[k], &u.used[1-k], &u.quota[k], &u.quota[allPools], &u.increases[k]
	// The sign bits of the differences are combined with or: one branch at the end instead of
	// sixteen.
	beyond := func(g gauge) int64 { // negative if the gauge exceeds a quota
		sum := used[g] + d[g]
		return (pool[g] - sum) | (all[g] - sum - other[g])
	}
	if beyond(gaugeAllocatedBlocks)|beyond(gaugeAllocatedBytes)|beyond(gaugeActiveBlocks)|beyond(gaugeActiveBytes)|
		beyond(gaugeInactiveSplitBlocks)|beyond(gaugeInactiveSplitBytes)|beyond(gaugeRequestedBytes)|beyond(gaugeOversizeBlocks) < 0 {
		return false
	}
	if len(u.scopes) != 0 && !u.fitsScopes(d) {
		return false
	}
	add := func(g gauge) int64 {
		used[g] += d[g]
		up[g] += max(d[g], 0)
		return used[g]
	}
	notNegative("the gauges joined by or", add(gaugeAllocatedBlocks)|add(gaugeAllocatedBytes)|add(gaugeActiveBlocks)|add(gaugeActiveBytes)|
		add(gaugeInactiveSplitBlocks)|add(gaugeInactiveSplitBytes)|add(gaugeRequestedBytes)|add(gaugeOversizeBlocks))
	return true
}

// tryEnd is tryAdd for a delta that ends an allocation, or the wait after it. Only the inactive
// gauges can rise, so only they can exceed a quota. s.mu is held.
func (u *usage) tryEnd(k placement.Kind, d *delta) bool {
	used, other, pool, all, up := &u.used[k], &u.used[1-k], &u.quota[k], &u.quota[allPools], &u.increases[k]
	blocks, bytes := used[gaugeInactiveSplitBlocks]+d[gaugeInactiveSplitBlocks], used[gaugeInactiveSplitBytes]+d[gaugeInactiveSplitBytes]
	if (pool[gaugeInactiveSplitBlocks]-blocks)|(all[gaugeInactiveSplitBlocks]-blocks-other[gaugeInactiveSplitBlocks])|
		(pool[gaugeInactiveSplitBytes]-bytes)|(all[gaugeInactiveSplitBytes]-bytes-other[gaugeInactiveSplitBytes]) < 0 {
		return false
	}
	up[gaugeInactiveSplitBlocks] += max(d[gaugeInactiveSplitBlocks], 0)
	up[gaugeInactiveSplitBytes] += max(d[gaugeInactiveSplitBytes], 0)
	used[gaugeInactiveSplitBlocks], used[gaugeInactiveSplitBytes] = blocks, bytes
	fall := func(g gauge) int64 {
		used[g] += d[g]
		return used[g]
	}
	notNegative("the gauges joined by or", blocks|bytes|fall(gaugeAllocatedBlocks)|fall(gaugeAllocatedBytes)|fall(gaugeActiveBlocks)|
		fall(gaugeActiveBytes)|fall(gaugeRequestedBytes)|fall(gaugeOversizeBlocks))
	return true
}

// publish stores the allocated bytes for readers without the lock. The atomic store waits for
// earlier accesses and delays later ones, so it is called after an allocation or a free has read
// its chunk, and not in tryAdd. s.mu is held.
func (u *usage) publish() { u.allocated.Store(u.inUse(allPools, gaugeAllocatedBytes)) }

// fitsScopes reports whether the delta fits the windows of the open scopes, which have peaks of two
// gauges over both kinds.
func (u *usage) fitsScopes(d *delta) bool {
	for i := range u.scopes {
		q := &u.scopes[i]
		if n := d[gaugeAllocatedBytes]; n > 0 && u.inUse(allPools, gaugeAllocatedBytes)+n > q.allocated {
			return false
		}
		if n := d[gaugeRequestedBytes]; n > 0 && u.inUse(allPools, gaugeRequestedBytes)+n > q.requested {
			return false
		}
	}
	return true
}
