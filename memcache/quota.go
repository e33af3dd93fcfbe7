package memcache

import (
	"github.com/cistern-ml/cistern/internal/peaks"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// How a shard gets more quota than it has; usage.go explains quotas. A peak may rise only with all
// shards locked (addStopped). If there are few shards and no other goroutine holds them, a shard
// tries that first, because in a program whose steps have a Scope each, most requests of a step
// raise its peak. Otherwise a shard first claims quota from other shards, with two locks at a time
// (claimQuota). That serves programs whose streams take turns: the sum stays below the peak while
// each stream's use rises and falls.

// fewShards is the maximum number of shards that are all locked at once before unused quotas are
// claimed from them. The cost is failed attempts of other goroutines to do the same.
const fewShards = 4

// add adds the delta to the gauges: within the quotas of s, with quotas that other shards don't use
// or, with all shards locked, by raising peaks. It returns false, and has changed nothing, if all
// shards must be locked and another goroutine holds one of them. The caller then releases s,
// because a goroutine that waits for the other shards must not hold it, and repeats its operation
// with all shards locked. p is the pool of an allocation, which counts it afterwards. s.mu is held
// throughout.
func (s *shard) add(p *placement.Pool, k placement.Kind, d *delta, allLocked bool) bool {
	return s.tryAdd(k, d) || s.addBeyond(p, k, d, allLocked)
}

// addBeyond is add for a delta that exceeds the quotas of s.
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

// tryLockOthers is lockAll for the holder of s, if there are few shards and all are unlocked. The
// lock order does not matter, because it never waits for a lock.
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

// claimQuota is tryAdd with the unused quotas of other shards that the delta needs, if they
// suffice. The sum of the quotas stays the same. s.mu is held. The others' locks are only tried, so
// that the lock order does not matter, and a busy shard is skipped.
func (s *shard) claimQuota(k placement.Kind, d *delta) bool {
	// When the use at the peak moves from stream to stream, the last shard that claimed quotas
	// holds the unused ones.
	if last := s.shards.ledger.claimed.Load(); last != nil && s.claimFrom(last, k, d) {
		s.shards.ledger.claimed.Store(s)
		return true
	}
	// The quota may come from several shards. If all of it is not enough, s keeps it, where it is
	// as useful as elsewhere.
	for _, o := range s.shards.list() {
		if s.claimFrom(o, k, d) {
			s.shards.ledger.claimed.Store(s)
			return true
		}
	}
	return false
}

// claimFrom is tryAdd with the quotas that o does not use, unless o is busy or retired. s.mu is
// held.
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
	// Only increases need quota. Decreases leave the quota where it is.
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

// addStopped is add with quotas that other shards don't use and, if they are not enough, with
// higher peaks: see peaks.Cover. All shards are locked.
func (s *shard) addStopped(p *placement.Pool, k placement.Kind, d *delta) {
	l := s.shards.ledger
	list := l.shards.list()
	for _, row := range [2]int{int(k), allPools} {
		for g := range gauges {
			if d[g] <= 0 {
				continue // a decrease always fits
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
