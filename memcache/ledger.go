package memcache

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// ledger is what the cache counts of all shards together, beside what each counts of itself: see usage.go and stats.go. It is
// guarded by shards.mu, and what shards add to is what it is while all are locked.
type ledger struct {
	shards    *shards
	threshold float64               // Config.GarbageCollectionThreshold
	claimed   atomic.Pointer[shard] // the last that claimed quotas of another: what is spare is there, soonest

	scopesEnded   uint64 // how many have; changed with all shards locked: one shard's lock is enough to look
	limit         int64  // bytes; math.MaxInt64: none
	stats         Stats  // but for what the shards keep
	peaks         [rows]delta
	epoch         uint64      // the number of peaks that were marked, and 1; changed with all shards locked
	peak          peakMark    // of the bytes allocated
	retiredTotals [2]delta    // the increases of retired shards
	resetBaseline [rows]delta // less what was in use when the sums were last reset: Freed is counted from there
	baseCounts    shardCounts // of retired shards, and the misses of failed requests
	openScopes    []*Scope    // in the order in which they were opened
}

// setLimit sets the limit, and arms or disarms garbage collection, which needs one. What is reserved already stays.
func (l *ledger) setLimit(limit int64) {
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	armed := l.gcArmed()
	l.limit = limit
	l.shards.history.mark(ActionSetLimit, 0, l.limitBytes())
	if now := l.gcArmed(); now && !armed {
		l.shards.slowWork.Add(gcWork)
	} else if armed && !now {
		l.shards.slowWork.Add(-gcWork)
	}
}

// limited reports whether the bytes reserved are limited. shards.mu is held.
func (l *ledger) limited() bool { return l.limit != math.MaxInt64 }

// limitBytes is the limit, or -1 for none. shards.mu is held.
func (l *ledger) limitBytes() int64 {
	if !l.limited() {
		return -1
	}
	return l.limit
}

// gcArmed reports whether garbage collection is armed: it has a threshold, and a limit that the threshold is a share of.
// shards.mu is held.
func (l *ledger) gcArmed() bool { return l.threshold > 0 && l.limited() }

// reserved takes the lock of what only the driver's calls change.
func (l *ledger) reserved() Stat {
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	return l.stats.ReservedBytes.All
}

// countReserved counts memory from the driver. shards.mu is held.
func (l *ledger) countReserved(k placement.Kind, bytes int64) {
	l.stats.ReservedBytes.add(k, bytes)
	for _, scope := range l.openScopes {
		scope.window.Reserved.Peak = max(scope.window.Reserved.Peak, l.stats.ReservedBytes.All.Current)
	}
}

// sumGauge adds a gauge up over the shards, and over those that are retired. All shards are locked.
func (l *ledger) sumGauge(row int, g gauge) Stat {
	// Increases are counted as they happen, and decreases follow from what is in use: hits count one of both.
	t := Stat{Peak: l.peaks[row][g]}
	for k := range l.retiredTotals {
		if row == k || row == allPools {
			t.Allocated += l.retiredTotals[k][g]
			for _, s := range l.shards.list() {
				t.Current += s.used[k][g]
				t.Allocated += s.increases[k][g]
			}
		}
	}
	t.Freed = t.Allocated - t.Current - l.resetBaseline[row][g]
	return t
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

// window has the levels of this moment, and counts from New on. It is what a step needs of sumStats, for a fraction of its
// cost. All shards are locked.
func (l *ledger) window() (w Window) {
	blocks := l.sumGauge(allPools, gaugeAllocatedBlocks)
	w.Allocations, w.Frees = blocks.Allocated, blocks.Freed
	n := l.baseCounts
	for _, s := range l.shards.list() {
		w.Allocated.Current += s.inUse(allPools, gaugeAllocatedBytes)
		w.Requested.Current += s.inUse(allPools, gaugeRequestedBytes)
		n.add(s)
	}
	w.Reserved.Current = l.stats.ReservedBytes.All.Current
	w.Hits, w.Misses = n.hits, n.misses
	w.DriverAllocs, w.Retries, w.OutOfMemory = l.stats.NumDeviceAlloc, l.stats.NumAllocRetries, l.stats.NumOOMs
	if b := l.stats.beforeReset; b != nil {
		w.Allocations += b.Allocation.All.Allocated
		w.Frees += b.Allocation.All.Freed
		w.Hits += b.Hits
		w.Misses += b.Misses
		w.DriverAllocs += b.NumDeviceAlloc
		w.Retries += b.NumAllocRetries
		w.OutOfMemory += b.NumOOMs
	}
	return w
}

// markPeak ends the epoch: what is in use is the composition of a peak. log gives a shard's share. All shards are locked.
func (l *ledger) markPeak(mark *peakMark, log func(*shard) *peakLog) {
	*mark = peakMark{reserved: l.stats.ReservedBytes.All.Current}
	l.epoch++
	for _, s := range l.shards.list() {
		mark.active += s.inUse(allPools, gaugeActiveBytes)
		part := log(s)
		part.forget()
		part.before, s.epoch = s.epoch, l.epoch
	}
}

// notesNow are notes of all blocks in use. All shards are locked.
func (l *ledger) notesNow() (notes []freedBlock, mark peakMark) {
	mark.reserved = l.stats.ReservedBytes.All.Current
	for _, s := range l.shards.list() {
		mark.active += s.inUse(allPools, gaugeActiveBytes)
		if !l.shards.closed {
			notes = slices.Grow(notes, int(s.inUse(allPools, gaugeAllocatedBlocks)))
			s.eachLive(func(h *handout) { notes = append(notes, h.note()) })
		}
	}
	return notes, mark
}

// notesOfPeak are notes of all blocks that were part of a peak; log gives a shard's share. All shards are locked.
func (l *ledger) notesOfPeak(log func(*shard) *peakLog) (notes []freedBlock) {
	for _, s := range l.shards.list() {
		part := log(s)
		notes = slices.Grow(notes, len(part.freed)+int(s.inUse(allPools, gaugeAllocatedBlocks)))
		notes = append(notes, part.freed...)
		if l.shards.closed {
			continue // Close noted what was in use
		}
		s.eachLive(func(h *handout) {
			if h.born <= part.before {
				notes = append(notes, h.note())
			}
		})
	}
	return notes
}

// profile is Cache.Profile.
func (l *ledger) profile() Profile {
	l.shards.lockAll()
	notes, mark := l.notesNow()
	l.shards.unlockAll()
	return newProfile(notes, mark)
}
