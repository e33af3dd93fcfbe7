package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// How a shard gets more quota than it has; usage.go says what quotas are for. With all shards locked (raisePeaks), which
// alone may raise a peak: of few shards at once, if nobody else has them, as in a program whose steps have a Scope each,
// whose peak rises with most of the step's requests. Else first from other shards, with two locks (claimQuota): that serves
// programs whose streams take turns, so that the sum stays below the peak while each stream's use rises and falls.

// fewShards is up to how many are locked at once without having been asked for what they don't use. What it costs is
// others' failed attempts to do the same.
const fewShards = 4

// makeRoom is for a delta that does not fit: it locks all other shards, if it can, for raisePeaks and unlockOthers, or lets the
// delta fit. If neither is so, what the delta is of is done again with all shards locked. s.mu is held.
func (s *shard) makeRoom(k placement.Kind, d *delta) (fits, others bool) {
	if s.shards.tryLockOthers(s) {
		return false, true
	}
	return s.claimQuota(k, d), false
}

// tryLockOthers is lockAll for who has s, if there are few shards and nobody has one. The order of locks does not matter
// to who does not wait for them.
func (all *shards) tryLockOthers(s *shard) bool {
	if len(all.list()) > fewShards || !all.mu.TryLock() {
		return false
	}
	list := all.list()
	for i, o := range list {
		if o != s && !o.mu.TryLock() {
			for _, o := range list[:i] {
				if o != s {
					o.mu.Unlock()
				}
			}
			all.mu.Unlock()
			return false
		}
	}
	return true
}

// unlockOthers undoes tryLockOthers.
func (all *shards) unlockOthers(s *shard) {
	for _, o := range all.list() {
		if o != s {
			o.mu.Unlock()
		}
	}
	all.mu.Unlock()
}

// claimQuota takes what the delta needs out of the unused quotas of other shards, and reports whether that was enough. The
// sum of the quotas stays what it was. s.mu is held; the others' locks are only tried, so that their order does not
// matter, and a shard that is busy is passed over.
func (s *shard) claimQuota(k placement.Kind, d *delta) bool {
	// Usage at the peak that moves from stream to stream leaves its quotas behind with the one that claimed them last.
	if last := s.shards.ledger.claimed.Load(); last != nil && s.claimFrom(last, k, d) {
		s.shards.ledger.claimed.Store(s)
		return true
	}
	// Part of what is claimed may come from one shard and part from the next. If all of it is too little it stays with s,
	// which is as good a place as any.
	for _, o := range s.shards.list() {
		if s.claimFrom(o, k, d) {
			s.shards.ledger.claimed.Store(s)
			return true
		}
	}
	return false
}

// claimFrom claims what o does not use, unless it is busy or gone, and reports whether the delta fits then. s.mu is held.
func (s *shard) claimFrom(o *shard, k placement.Kind, d *delta) bool {
	if o == s || !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	if !o.retired {
		d.claimQuota(k, s, o)
	}
	return s.fits(k, d)
}

// claimQuota moves unused quotas of o to s, as far as the delta needs them. Both are locked.
func (d *delta) claimQuota(k placement.Kind, s, o *shard) {
	// Only what rises can be in the way. What falls leaves its quota where it is.
	for _, row := range [2]int{int(k), allPools} {
		for g, n := range d {
			if n > 0 {
				g := gauge(g)
				moveQuota(&s.quota[row][g], s.inUse(row, g)+n, &o.quota[row][g], o.inUse(row, g))
			}
		}
	}
	for i := range s.scopes {
		mine, theirs := &s.scopes[i], &o.scopes[i]
		g := gaugeAllocatedBytes
		moveQuota(&mine.allocated, s.inUse(allPools, g)+max(d[g], 0), &theirs.allocated, o.inUse(allPools, g))
		g = gaugeRequestedBytes
		moveQuota(&mine.requested, s.inUse(allPools, g)+max(d[g], 0), &theirs.requested, o.inUse(allPools, g))
	}
}

// moveQuota raises the quota to need with what the other one has beyond its use, and returns what is still missing.
func moveQuota(quota *int64, need int64, other *int64, used int64) (missing int64) {
	if missing = need - *quota; missing <= 0 {
		return 0
	}
	n := min(missing, *other-used)
	*quota += n
	*other -= n
	return missing - n
}

// raisePeaks makes the quotas of s fit again after the delta was applied that did not fit: with what other shards don't use
// and, if that is not enough, by raising the peaks: then every shard uses its whole quota, and the peak is the true sum.
// All shards are locked.
func (l *ledger) raisePeaks(s *shard, k placement.Kind, d *delta) {
	for _, row := range [2]int{int(k), allPools} {
		for g := range gauges {
			if d[g] <= 0 {
				continue // what falls fits
			}
			if l.coverPeak(s, &l.peaks[row][g], func(s *shard) (int64, *int64) { return s.inUse(row, g), &s.quota[row][g] }) &&
				row == allPools && g == gaugeAllocatedBytes {
				l.markPeak(&l.peak, func(s *shard) *peakLog { return &s.peak })
			}
		}
	}
	for i, scope := range l.openScopes {
		if l.coverPeak(s, &scope.window.Allocated.Peak, func(s *shard) (int64, *int64) {
			return s.inUse(allPools, gaugeAllocatedBytes), &s.scopes[i].allocated
		}) {
			l.markPeak(&scope.peak, func(s *shard) *peakLog { return &s.scopes[i].peak })
		}
		l.coverPeak(s, &scope.window.Requested.Peak, func(s *shard) (int64, *int64) {
			return s.inUse(allPools, gaugeRequestedBytes), &s.scopes[i].requested
		})
	}
}

// coverPeak is raisePeaks for one peak, and reports whether it rose; of gives a shard's use and its quota in it.
func (l *ledger) coverPeak(s *shard, peak *int64, of func(*shard) (used int64, quota *int64)) (raised bool) {
	// As long as another shard has unused quota the true sum is below the peak, and the peak must not rise.
	need, quota := of(s)
	missing := need - *quota
	for _, o := range l.shards.list() {
		if missing <= 0 {
			return false
		}
		if o != s {
			used, other := of(o)
			missing = moveQuota(quota, need, other, used)
		}
	}
	if missing > 0 {
		*quota += missing
		*peak += missing
	}
	return missing > 0
}
