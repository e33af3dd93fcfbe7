package memcache

// gauge is one of the statistics that a shard keeps.
type gauge uint8

const (
	gaugeAllocation gauge = iota
	gaugeAllocatedBytes
	gaugeActive
	gaugeActiveBytes
	gaugeInactiveSplit
	gaugeInactiveSplitBytes
	gaugeRequestedBytes
	gaugeOversize
	gauges
)

// The rows of a statistic: a poolKind, or allPools.
const (
	allPools = int(largePool) + 1
	rows     = allPools + 1
)

// level is one gauge of one shard, with its share of the peak.
//
// Peaks are exact without a counter that the shards share: the sum of the shards' quotas is the peak, and no
// shard uses more than its quota. As long as that holds, no sum of uses exceeds the peak, whatever the
// shards do at the same time. An operation that would break it runs with all shards locked, where the true
// sum is known; see raise.
type level struct {
	used, quota int64
	up, down    int64 // the sums of increases and decreases
}

// change is what an operation does to a shard's gauges.
type change [gauges]int64

// window is the share of a shard in the peaks of one open scope.
type window struct {
	allocated, requested int64 // quotas, in bytes
}

// fits reports whether the change leaves every level within its quota. s.mu is held.
func (s *shard) fits(k poolKind, d *change) bool {
	pool, all := &s.levels[k], &s.levels[allPools]
	for g, n := range d {
		if n > 0 && (pool[g].used+n > pool[g].quota || all[g].used+n > all[g].quota) {
			return false
		}
	}
	for i := range s.windows {
		w := &s.windows[i]
		if n := d[gaugeAllocatedBytes]; n > 0 && all[gaugeAllocatedBytes].used+n > w.allocated {
			return false
		}
		if n := d[gaugeRequestedBytes]; n > 0 && all[gaugeRequestedBytes].used+n > w.requested {
			return false
		}
	}
	return true
}

// apply changes the levels. s.mu is held; unless the change fits, all shards are locked and raise follows.
func (s *shard) apply(k poolKind, d *change) {
	pool, all := &s.levels[k], &s.levels[allPools]
	for g, n := range d {
		if n == 0 {
			continue
		}
		pool[g].move(n)
		all[g].move(n)
	}
}

func (l *level) move(n int64) {
	l.used += n
	if n > 0 {
		l.up += n
	} else {
		l.down -= n
	}
}

// raise brings the peaks up to date after a change of s, and hands what is left between the true sum and the
// peak out to the shards as quotas. All shards are locked.
func (c *Cache) raise(s *shard, k poolKind) {
	for _, row := range [2]int{int(k), allPools} {
		for g := range s.levels[row] {
			if l := &s.levels[row][g]; l.used > l.quota {
				c.share(s, &c.peaks[row][g], func(s *shard) (int64, *int64) {
					l := &s.levels[row][g]
					return l.used, &l.quota
				})
			}
		}
	}
	for i, w := range c.windows {
		c.share(s, &w.window.Allocated.Peak, func(s *shard) (int64, *int64) {
			return s.levels[allPools][gaugeAllocatedBytes].used, &s.windows[i].allocated
		})
		c.share(s, &w.window.Requested.Peak, func(s *shard) (int64, *int64) {
			return s.levels[allPools][gaugeRequestedBytes].used, &s.windows[i].requested
		})
	}
}

// share raises a peak to the sum of the shards' uses, and sets their quotas: each keeps what it uses, and an
// equal part of the slack; s gets what does not divide. All shards are locked.
func (c *Cache) share(s *shard, peak *int64, of func(*shard) (used int64, quota *int64)) {
	shards := c.table.Load().list
	var sum int64
	for _, o := range shards {
		used, _ := of(o)
		sum += used
	}
	*peak = max(*peak, sum)
	slack := *peak - sum
	part := slack / int64(len(shards))
	for _, o := range shards {
		used, quota := of(o)
		*quota = used + part
	}
	_, quota := of(s)
	*quota += slack - part*int64(len(shards))
}

// total is the sum of a gauge over the shards, and over those that are gone. All shards are locked.
func (c *Cache) total(row int, g gauge) Stat {
	t := c.retired[row][g]
	for _, s := range c.table.Load().list {
		l := &s.levels[row][g]
		t.used += l.used
		t.up += l.up
		t.down += l.down
	}
	return Stat{Current: t.used, Peak: c.peaks[row][g], Allocated: t.up, Freed: t.down}
}
