package memcache

import (
	"github.com/cistern-ml/cistern/internal/peaks"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// How a shard gets more quota than it has; usage.go says what quotas are for. With all shards locked (addStopped), which
// alone may raise a peak: of few shards at once, if nobody else has them, as in a program whose steps have a Scope each,
// whose peak rises with most of the step's requests. Else first from other shards, with two locks (claimQuota): that serves
// programs whose streams take turns, so that the sum stays below the peak while each stream's use rises and falls.

// fewShards is up to how many are locked at once without having been asked for what they don't use. What it costs is
// others' failed attempts to do the same.
const fewShards = 4

// add adds the delta to the gauges: within the quotas of s, with what others don't use or, with all
// shards locked, by raising peaks. It reports false, and has changed nothing, if all shards must be
// locked and another goroutine has one of them. The caller then releases s, because a goroutine that
// waits for the other shards must not hold it, and repeats its operation with all shards locked. p
// is the pool of a hand-out, which counts it afterwards. s.mu is held all the time.
func (s *shard) add(p *placement.Pool, k placement.Kind, d *delta, allLocked bool) bool {
	return s.tryAdd(k, d) || s.addBeyond(p, k, d, allLocked)
}

// addBeyond is add of a delta that does not fit.
func (s *shard) addBeyond(p *placement.Pool, k placement.Kind, d *delta, allLocked bool) bool {
	if allLocked {
		s.addStopped(p, k, d)
		return true
	}
	if s.shards.tryLockOthers(s) {
		defer s.shards.unlockOthers(s)
		s.addStopped(p, k, d)
		return true
	}
	return s.claimQuota(k, d)
}

// tryLockOthers is lockAll for the holder of s, if there are few shards and all are free. The order
// of locks does not matter, because it waits for none of them.
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

// claimQuota is tryAdd with what the delta needs out of the unused quotas of other shards, if that is enough. The
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

// claimFrom is tryAdd with what o does not use, unless it is busy or gone. s.mu is held.
func (s *shard) claimFrom(o *shard, k placement.Kind, d *delta) bool {
	if o == s || !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	if !o.retired {
		d.claimQuota(k, s, o)
	}
	return s.tryAdd(k, d)
}

// claimQuota moves unused quotas of o to s, as far as the delta needs them. Both are locked.
func (d *delta) claimQuota(k placement.Kind, s, o *shard) {
	// Only what rises can be in the way. What falls leaves its quota where it is.
	for _, row := range [2]int{int(k), allPools} {
		for g, n := range d {
			if n > 0 {
				g := gauge(g)
				peaks.Take(&s.quota[row][g], s.inUse(row, g)+n, &o.quota[row][g], o.inUse(row, g))
			}
		}
	}
	for i := range s.scopes {
		mine, theirs := &s.scopes[i], &o.scopes[i]
		g := gaugeAllocatedBytes
		peaks.Take(&mine.allocated, s.inUse(allPools, g)+max(d[g], 0), &theirs.allocated, o.inUse(allPools, g))
		g = gaugeRequestedBytes
		peaks.Take(&mine.requested, s.inUse(allPools, g)+max(d[g], 0), &theirs.requested, o.inUse(allPools, g))
	}
}

// addStopped is add with quotas that others don't use and, if they are not enough, higher peaks: see peaks.Cover. All shards
// are locked.
func (s *shard) addStopped(p *placement.Pool, k placement.Kind, d *delta) {
	l := s.shards.ledger
	list := l.shards.list()
	for _, row := range [2]int{int(k), allPools} {
		for g := range gauges {
			if d[g] <= 0 {
				continue // what falls fits
			}
			if peaks.Cover(&l.peaks[row][g], s, list, d[g], func(s *shard) (int64, *int64) { return s.inUse(row, g), &s.quota[row][g] }) &&
				row == allPools && g == gaugeAllocatedBytes {
				l.markPeak(&l.peak, p, d, func(s *shard) *peakLog { return &s.peak })
			}
		}
	}
	for i, scope := range l.openScopes {
		if peaks.Cover(&scope.window.Allocated.Peak, s, list, d[gaugeAllocatedBytes], func(s *shard) (int64, *int64) {
			return s.inUse(allPools, gaugeAllocatedBytes), &s.scopes[i].allocated
		}) {
			l.markPeak(&scope.peak, p, d, func(s *shard) *peakLog { return &s.scopes[i].peak })
		}
		peaks.Cover(&scope.window.Requested.Peak, s, list, d[gaugeRequestedBytes], func(s *shard) (int64, *int64) {
			return s.inUse(allPools, gaugeRequestedBytes), &s.scopes[i].requested
		})
	}
	s.tryAdd(k, d) // it fits
}
