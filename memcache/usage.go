package memcache

// gauge is one of the statistics that a shard keeps.
type gauge uint8

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

// The rows of a statistic: a poolKind, or allPools.
const (
	allPools = int(largePool) + 1
	rows     = allPools + 1
)

// change is what an operation does to the gauges of a pool. One row of gauges is a cache line.
type delta [gauges]int64

// levels are a shard's gauges, with its share of the peaks.
//
// Peaks are exact without a counter that the shards share: the sum of the shards' quotas is the peak, and no
// shard uses more than its quota. As long as that holds, no sum of uses exceeds the peak, whatever the
// shards do at the same time. An operation that would break it runs with all shards locked, where the true
// sum is known; see borrow and raise.
type usage struct {
	used      [2]delta    // by poolKind
	increases [2]delta    // by poolKind: the sum of all increases
	quota     [rows]delta // by poolKind, and of both together
	// scopes are the quotas in the peaks of the open scopes, in the order of Cache.windows.
	scopes []scopeQuota
}

type scopeQuota struct{ allocated, requested int64 }

// at is a gauge's use in a row.
func (u *usage) inUse(row int, g gauge) int64 {
	if row == allPools {
		return u.used[smallPool][g] + u.used[largePool][g]
	}
	return u.used[row][g]
}

// fits reports whether the change leaves every gauge within its quota. Those that fall always are. This and
// apply are on the path of every hit: unrolled, and without a branch for each gauge.
func (u *usage) fits(k poolKind, d *delta) bool {
	used, other, pool, all := &u.used[k], &u.used[1-k], &u.quota[k], &u.quota[allPools]
	beyond := func(g gauge) int64 { // negative if it is
		sum := used[g] + d[g]
		return (pool[g] - sum) | (all[g] - sum - other[g])
	}
	if beyond(gaugeAllocatedBlocks)|beyond(gaugeAllocatedBytes)|beyond(gaugeActiveBlocks)|beyond(gaugeActiveBytes)|
		beyond(gaugeInactiveSplitBlocks)|beyond(gaugeInactiveSplitBytes)|beyond(gaugeRequestedBytes)|beyond(gaugeOversizeBlocks) < 0 {
		return false
	}
	return len(u.scopes) == 0 || u.fitsScopes(d)
}

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

// apply changes the gauges. Unless the change fits, all shards are locked and raise follows.
func (u *usage) apply(k poolKind, d *delta) {
	used, up := &u.used[k], &u.increases[k]
	add := func(g gauge) {
		used[g] += d[g]
		notNegative("a gauge", used[g])
		up[g] += max(d[g], 0)
	}
	add(gaugeAllocatedBlocks)
	add(gaugeAllocatedBytes)
	add(gaugeActiveBlocks)
	add(gaugeActiveBytes)
	add(gaugeInactiveSplitBlocks)
	add(gaugeInactiveSplitBytes)
	add(gaugeRequestedBytes)
	add(gaugeOversizeBlocks)
}

// total is the sum of a gauge over the shards, and over those that are gone. All shards are locked.
func (c *Cache) sumGauge(row int, g gauge) Stat {
	t := Stat{Peak: c.peaks[row][g]}
	for k := range c.retiredTotals {
		if row == k || row == allPools {
			t.Allocated += c.retiredTotals[k][g]
			for _, s := range c.table.Load().list {
				t.Current += s.used[k][g]
				t.Allocated += s.increases[k][g]
			}
		}
	}
	t.Freed = t.Allocated - t.Current - c.resetBaseline[row][g]
	return t
}
