package memcache

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// ledger is what the cache counts of all shards together, beside what each counts of itself: see usage.go and stats.go. It is
// guarded by shards.mu, and what shards add to is what it is while all are locked.
type ledger struct {
	shards    *shards
	threshold float64               // Config.GarbageCollectionThreshold
	claimed   atomic.Pointer[shard] // the last that claimed quotas of another: what is spare is there, soonest

	scopesEnded uint64 // how many have; changed with all shards locked: one shard's lock is enough to look
	limit       int64  // bytes; math.MaxInt64: none
	stats       Stats  // from New on, without the counts of the shards
	beforeReset *Stats // the sums and counts up to the last reset, or nil
	peaks       [rows]delta
	epoch       uint64   // the number of peaks that were marked, and 1; changed with all shards locked
	peak        peakMark // of the bytes allocated
	openScopes  []*Scope // in the order in which they were opened

	reservedNow atomic.Int64 // bytes, as in stats, without the lock
}

// setLimit sets the limit, and arms or disarms garbage collection, which needs one. What is reserved already stays. shards.mu is held.
func (l *ledger) setLimit(limit int64) {
	l.limit = limit
	l.shards.history.mark(ActionSetLimit, 0, l.limitBytes())
	l.shards.gcArmed.Store(l.gcArmed())
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
	l.reservedNow.Store(l.stats.ReservedBytes.All.Current)
	for _, scope := range l.openScopes {
		scope.window.Reserved.Peak = max(scope.window.Reserved.Peak, l.stats.ReservedBytes.All.Current)
	}
}

// uncountReserved counts memory that went back to the driver. shards.mu is held.
func (l *ledger) uncountReserved(k placement.Kind, bytes int64) {
	l.stats.ReservedBytes.sub(k, bytes)
	l.reservedNow.Store(l.stats.ReservedBytes.All.Current)
}

// sumGauge adds a gauge up over the shards, from New on. All shards are locked.
func (l *ledger) sumGauge(row int, g gauge) Stat {
	// Increases are counted as they happen, and decreases follow from what is in use: hits count one of both.
	t := Stat{Peak: l.peaks[row][g]}
	for _, s := range l.shards.list() {
		t.Current += s.inUse(row, g)
		t.Allocated += s.increased(row, g)
	}
	t.Freed = t.Allocated - t.Current
	return t
}

// sumStats adds the shards' gauges to what the cache counts itself, from New on. All shards are locked: what it returns was
// true at one moment.
func (l *ledger) sumStats() Stats {
	s := l.stats
	for g, a := range [...]*StatArray{
		gaugeAllocatedBlocks: &s.Allocation, gaugeAllocatedBytes: &s.AllocatedBytes,
		gaugeActiveBlocks: &s.Active, gaugeActiveBytes: &s.ActiveBytes,
		gaugeInactiveSplitBlocks: &s.InactiveSplit, gaugeInactiveSplitBytes: &s.InactiveSplitBytes,
		gaugeRequestedBytes: &s.RequestedBytes,
	} {
		a.All, a.SmallPool, a.LargePool = l.sumGauge(allPools, gauge(g)), l.sumGauge(int(placement.Small), gauge(g)), l.sumGauge(int(placement.Large), gauge(g))
	}
	s.OversizeAllocations = l.sumGauge(allPools, gaugeOversizeBlocks)
	n := l.counts()
	s.AccountingFaults = accounting.Faults()
	s.Hits, s.Misses, s.Splits, s.Merges = n.hits, n.misses, n.splits, n.merges
	return s
}

// sinceReset is sumStats with the sums and counts from the last reset on. All shards are locked.
func (l *ledger) sinceReset() Stats {
	s := l.sumStats()
	s.addSums(l.beforeReset, -1)
	s.beforeReset = l.beforeReset
	return s
}

// counts sums up what the shards count. A request that failed missed, too. All shards are locked.
func (l *ledger) counts() shardCounts {
	n := shardCounts{misses: l.stats.NumOOMs}
	for _, s := range l.shards.list() {
		n.add(s.shardCounts)
	}
	return n
}

// window has the levels of this moment, and counts from New on. It is what a step needs of sumStats, for a fraction of its
// cost. All shards are locked.
func (l *ledger) window() (w Window) {
	blocks, n := l.sumGauge(allPools, gaugeAllocatedBlocks), l.counts()
	w.Allocations, w.Frees, w.Hits, w.Misses = blocks.Allocated, blocks.Freed, n.hits, n.misses
	w.Allocated.Current = l.sumGauge(allPools, gaugeAllocatedBytes).Current
	w.Requested.Current = l.sumGauge(allPools, gaugeRequestedBytes).Current
	w.Reserved.Current = l.stats.ReservedBytes.All.Current
	held, _ := l.heldByGraphs()
	w.GraphBytes = held.All
	w.DriverAllocs, w.Retries, w.OutOfMemory = l.stats.NumDeviceAlloc, l.stats.NumAllocRetries, l.stats.NumOOMs
	return w
}

// markPeak ends the epoch: what is in use, and what d is about to add out of p, is the composition
// of a peak. log gives a shard's share. All shards are locked.
func (l *ledger) markPeak(mark *peakMark, p *placement.Pool, d *delta, log func(*shard) *peakLog) {
	*mark = l.markNow()
	mark.active += d[gaugeActiveBytes]
	if p.Pinned() {
		mark.graphs -= d[gaugeActiveBytes]
	}
	l.epoch++
	for _, s := range l.shards.list() {
		part := log(s)
		part.forget()
		part.before, s.epoch = s.epoch, l.epoch
	}
}

// markNow are the figures of this moment. All shards are locked.
func (l *ledger) markNow() peakMark {
	held, _ := l.heldByGraphs()
	return peakMark{active: l.sumGauge(allPools, gaugeActiveBytes).Current, reserved: l.stats.ReservedBytes.All.Current, graphs: held.All}
}

// heldByGraphs is what unreleased pools with captured blocks have free, and the part of it in
// InactiveSplitBytes. It reads counts of the pools, and no block. All shards are locked.
func (l *ledger) heldByGraphs() (held, split PoolBytes) {
	if l.shards.closed {
		return held, split
	}
	for _, p := range l.shards.cache.openPools {
		if p.place.Pinned() {
			countsOf(&p.place).addFree(&held, &split)
		}
	}
	return held, split
}

// notesNow are notes of all blocks in use. All shards are locked.
func (l *ledger) notesNow() []freedBlock {
	all := peakLog{before: math.MaxUint64}
	return l.notesOfPeak(func(*shard) *peakLog { return &all })
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
	notes, mark := l.notesNow(), l.markNow()
	l.shards.unlockAll()
	return newProfile(notes, mark)
}
