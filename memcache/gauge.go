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

// change is what an operation does to the gauges of a pool. One row of gauges is a cache line.
type change [gauges]int64

// levels are a shard's gauges, with its share of the peaks.
//
// Peaks are exact without a counter that the shards share: the sum of the shards' quotas is the peak, and no
// shard uses more than its quota. As long as that holds, no sum of uses exceeds the peak, whatever the
// shards do at the same time. An operation that would break it runs with all shards locked, where the true
// sum is known; see borrow and raise.
type levels struct {
	used  [2]change    // by poolKind
	up    [2]change    // by poolKind: the sum of all increases
	quota [rows]change // by poolKind, and of both together
	// scopes are the quotas in the peaks of the open scopes, in the order of Cache.windows.
	scopes []scopeQuota
}

type scopeQuota struct{ allocated, requested int64 }

// at is a gauge's use in a row.
func (l *levels) at(row int, g gauge) int64 {
	if row == allPools {
		return l.used[smallPool][g] + l.used[largePool][g]
	}
	return l.used[row][g]
}

// fits reports whether the change leaves every gauge within its quota. Those that fall always are. This and
// apply are on the path of every hit: unrolled, and without a branch for each gauge.
func (l *levels) fits(k poolKind, d *change) bool {
	used, other, pool, all := &l.used[k], &l.used[1-k], &l.quota[k], &l.quota[allPools]
	beyond := func(g gauge) int64 { // negative if it is
		u := used[g] + d[g]
		return (pool[g] - u) | (all[g] - u - other[g])
	}
	if beyond(gaugeAllocation)|beyond(gaugeAllocatedBytes)|beyond(gaugeActive)|beyond(gaugeActiveBytes)|
		beyond(gaugeInactiveSplit)|beyond(gaugeInactiveSplitBytes)|beyond(gaugeRequestedBytes)|beyond(gaugeOversize) < 0 {
		return false
	}
	return len(l.scopes) == 0 || l.fitsScopes(d)
}

func (l *levels) fitsScopes(d *change) bool {
	for i := range l.scopes {
		q := &l.scopes[i]
		if n := d[gaugeAllocatedBytes]; n > 0 && l.at(allPools, gaugeAllocatedBytes)+n > q.allocated {
			return false
		}
		if n := d[gaugeRequestedBytes]; n > 0 && l.at(allPools, gaugeRequestedBytes)+n > q.requested {
			return false
		}
	}
	return true
}

// apply changes the gauges. Unless the change fits, all shards are locked and raise follows.
func (l *levels) apply(k poolKind, d *change) {
	used, up := &l.used[k], &l.up[k]
	add := func(g gauge) {
		used[g] += d[g]
		notNegative("a gauge", used[g])
		up[g] += max(d[g], 0)
	}
	add(gaugeAllocation)
	add(gaugeAllocatedBytes)
	add(gaugeActive)
	add(gaugeActiveBytes)
	add(gaugeInactiveSplit)
	add(gaugeInactiveSplitBytes)
	add(gaugeRequestedBytes)
	add(gaugeOversize)
}

// borrow takes what the change needs out of the unused quotas of other shards, and reports whether that was
// enough. The sum of the quotas stays what it was. s.mu is held; the others' locks are only tried, so that
// their order does not matter.
func (s *shard) borrow(k poolKind, d *change) bool {
	shards := s.cache.table.Load().list
	for range shards {
		s.lender++
		o := shards[s.lender%len(shards)]
		if o == s || !o.mu.TryLock() {
			continue
		}
		s.drain(o, k, d)
		o.mu.Unlock()
		if s.fits(k, d) {
			return true
		}
	}
	return false
}

// drain moves unused quotas of o to s, as far as the change needs them. Both are locked.
func (s *shard) drain(o *shard, k poolKind, d *change) {
	for _, row := range [2]int{int(k), allPools} {
		for g, n := range d {
			if n > 0 {
				g := gauge(g)
				move(&s.quota[row][g], s.at(row, g)+n, &o.quota[row][g], o.at(row, g))
			}
		}
	}
	for i := range s.scopes {
		mine, theirs := &s.scopes[i], &o.scopes[i]
		g := gaugeAllocatedBytes
		move(&mine.allocated, s.at(allPools, g)+max(d[g], 0), &theirs.allocated, o.at(allPools, g))
		g = gaugeRequestedBytes
		move(&mine.requested, s.at(allPools, g)+max(d[g], 0), &theirs.requested, o.at(allPools, g))
	}
}

// move raises the quota to need with what the other one has beyond its use, and returns what is missing.
func move(quota *int64, need int64, other *int64, used int64) (missing int64) {
	if missing = need - *quota; missing <= 0 {
		return 0
	}
	n := min(missing, *other-used)
	*quota += n
	*other -= n
	return missing - n
}

// raise makes the quotas of s fit again after a change: with what other shards don't use and, if that is not
// enough, by raising the peaks: then every shard uses its whole quota, and the peak is the true sum. All
// shards are locked.
func (c *Cache) raise(s *shard, k poolKind) {
	for _, row := range [2]int{int(k), allPools} {
		for g := range gauges {
			c.cover(s, &c.peaks[row][g], func(s *shard) (int64, *int64) { return s.at(row, g), &s.quota[row][g] })
		}
	}
	for i, w := range c.windows {
		c.cover(s, &w.window.Allocated.Peak, func(s *shard) (int64, *int64) {
			return s.at(allPools, gaugeAllocatedBytes), &s.scopes[i].allocated
		})
		c.cover(s, &w.window.Requested.Peak, func(s *shard) (int64, *int64) {
			return s.at(allPools, gaugeRequestedBytes), &s.scopes[i].requested
		})
	}
}

// cover is raise for one peak.
func (c *Cache) cover(s *shard, peak *int64, of func(*shard) (used int64, quota *int64)) {
	need, quota := of(s)
	missing := need - *quota
	for _, o := range c.table.Load().list {
		if missing <= 0 {
			return
		}
		if o != s {
			used, other := of(o)
			missing = move(quota, need, other, used)
		}
	}
	if missing > 0 {
		*quota += missing
		*peak += missing
	}
}

// total is the sum of a gauge over the shards, and over those that are gone. All shards are locked.
func (c *Cache) total(row int, g gauge) Stat {
	t := Stat{Peak: c.peaks[row][g]}
	for k := range c.retired {
		if row == k || row == allPools {
			t.Allocated += c.retired[k][g]
			for _, s := range c.table.Load().list {
				t.Current += s.used[k][g]
				t.Allocated += s.up[k][g]
			}
		}
	}
	t.Freed = t.Allocated - t.Current - c.forgotten[row][g]
	return t
}
