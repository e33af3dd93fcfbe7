package memcache

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// ledger is the accounting of all shards together, beside the counts of each shard: see usage.go
// and stats.go. It is guarded by shards.mu. Values that the shards contribute to are stable only
// while all are locked.
type ledger struct {
	shards    *shards
	threshold float64 // Config.GarbageCollectionThreshold
	// the last shard that claimed quotas, which is the likeliest to have spare ones
	claimed atomic.Pointer[shard]

	// scopesEnded is the number of ended scopes. It changes with all shards locked, so one shard's
	// lock suffices to read it.
	scopesEnded uint64
	limit       int64  // bytes; math.MaxInt64: none
	stats       Stats  // from New on, without the counts of the shards
	beforeReset *Stats // the sums and counts at the last reset, or nil
	peaks       [rows]delta
	epoch       uint64   // the number of marked peaks plus 1; changed with all shards locked
	peak        peakMark // the peak of allocated bytes
	openScopes  []*Scope // in the order in which they were opened

	reservedNow atomic.Int64 // bytes; stats.ReservedBytes readable without the lock
}

// setLimit sets the limit, and arms or disarms garbage collection, which needs one. Memory already
// reserved stays. shards.mu is held.
func (l *ledger) setLimit(limit int64) {
	l.limit = limit
	l.shards.history.mark(ActionSetLimit, 0, l.limitBytes())
	l.shards.gcArmed.Store(l.gcArmed())
}

// limited reports whether the reserved bytes are limited. shards.mu is held.
func (l *ledger) limited() bool { return l.limit != math.MaxInt64 }

// limitBytes returns the limit, or -1 for none. shards.mu is held.
func (l *ledger) limitBytes() int64 {
	if !l.limited() {
		return -1
	}
	return l.limit
}

// gcArmed reports whether garbage collection is armed: it has a threshold, and a limit that the
// threshold is a fraction of. shards.mu is held.
func (l *ledger) gcArmed() bool { return l.threshold > 0 && l.limited() }

// reserved returns the statistic of reserved bytes, which only driver calls change. It takes
// shards.mu.
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

// sumGauge sums a gauge over the shards, since New. All shards are locked.
func (l *ledger) sumGauge(row int, g gauge) Stat {
	// A hit counts only increases; decreases follow from the current use.
	t := Stat{Peak: l.peaks[row][g]}
	for _, s := range l.shards.list() {
		t.Current += s.inUse(row, g)
		t.Allocated += s.increased(row, g)
	}
	t.Freed = t.Allocated - t.Current
	return t
}

// sumStats adds the shards' gauges to the cache's own counts, since New. All shards are locked, so
// the result is consistent.
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

// sinceReset is sumStats with the sums and counts since the last reset. All shards are locked.
func (l *ledger) sinceReset() Stats {
	s := l.sumStats()
	s.addSums(l.beforeReset, -1)
	s.beforeReset = l.beforeReset
	return s
}

// counts sums the shards' counts. A failed request counts as a miss, too. All shards are locked.
func (l *ledger) counts() shardCounts {
	n := shardCounts{misses: l.stats.NumOOMs}
	for _, s := range l.shards.list() {
		n.add(s.shardCounts)
	}
	return n
}

// window returns the present levels, and the counts since New. It is the part of sumStats that a
// step needs, at a fraction of the cost. All shards are locked.
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

// markPeak ends the epoch and marks a peak: the blocks in use, with those that d is about to add
// from p, are its composition. log returns a shard's share. All shards are locked.
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

// markNow returns the present figures. All shards are locked.
func (l *ledger) markNow() peakMark {
	held, _ := l.heldByGraphs()
	return peakMark{active: l.sumGauge(allPools, gaugeActiveBytes).Current, reserved: l.stats.ReservedBytes.All.Current, graphs: held.All}
}

// heldByGraphs returns the free memory of unreleased pools with captured blocks, and the part of it
// in InactiveSplitBytes. It reads the counts of the pools, and walks no blocks. All shards are
// locked.
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

// notesNow returns notes of all blocks in use. All shards are locked.
func (l *ledger) notesNow() []freedBlock {
	all := peakLog{before: math.MaxUint64}
	return l.notesOfPeak(func(*shard) *peakLog { return &all })
}

// notesOfPeak returns notes of all blocks that were part of a peak; log returns a shard's share.
// All shards are locked.
func (l *ledger) notesOfPeak(log func(*shard) *peakLog) (notes []freedBlock) {
	for _, s := range l.shards.list() {
		part := log(s)
		notes = slices.Grow(notes, len(part.freed)+int(s.inUse(allPools, gaugeAllocatedBlocks)))
		notes = append(notes, part.freed...)
		if l.shards.closed {
			continue // Close noted the blocks in use
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
