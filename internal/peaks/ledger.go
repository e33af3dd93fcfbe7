package peaks

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// NoLimit is the limit of a gauge without one.
const NoLimit = math.MaxInt64

// Ledger has the peaks and limits of gauges, which are numbered from 0. Its shards have the counts.
// All methods may be called from any goroutine that holds no shard.
type Ledger struct {
	limits []int64
	// replaced with all shards locked; the first is rest
	shards   atomic.Pointer[[]*Shard]
	rest     *Shard       // has the counts of removed shards
	delayed  atomic.Int64 // Adds that have unlocked their shard to lock all
	stopping sync.Mutex   // held while all shards are locked

	// Guarded by the locks of all shards.
	peaks   []int64
	windows []*Window
}

// Total is a gauge, summed over the shards.
type Total struct {
	// Current is its value now, Peak the largest one since the ledger was made or ResetPeaks.
	Current, Peak int64
	// Added is the sum of all additions, and never falls: the sum of all subtractions is Added -
	// Current.
	Added int64
}

// New makes a ledger of as many gauges as there are limits. A limit below 0 is 0.
func New(limits ...int64) *Ledger {
	l := &Ledger{limits: limits, peaks: make([]int64, len(limits))}
	l.rest = l.newShard()
	l.shards.Store(&[]*Shard{l.rest})
	return l
}

func (l *Ledger) newShard() *Shard {
	s := &Shard{ledger: l, gauges: apart[gauge](len(l.limits))}
	for range l.windows {
		s.quotas = append(s.quotas, apart[int64](len(l.limits)))
	}
	return s
}

// apart returns n values that share no cache line with those of another shard.
func apart[T any](n int) []T { return make([]T, n, n+128/int(unsafe.Sizeof(*new(T)))) }

// LockAll locks every shard, in the same order in every call. Until UnlockAll only
// [Shard.AddStopped] changes anything, and all values that are read belong to one moment.
func (l *Ledger) LockAll() {
	l.stopping.Lock()
	for _, s := range *l.shards.Load() {
		s.Lock()
	}
}

// UnlockAll undoes LockAll.
func (l *Ledger) UnlockAll() { l.unlockAllBut(nil) }

func (l *Ledger) unlockAllBut(kept *Shard) {
	for _, s := range *l.shards.Load() {
		if s != kept {
			s.mu.Unlock()
		}
	}
	l.stopping.Unlock()
}

// Delayed returns the number of Adds that have released their shard's lock to lock all shards.
// Their changes are not counted yet, although their callers may have changed what is counted. All
// shards are locked.
func (l *Ledger) Delayed() int64 { return l.delayed.Load() }

// Total returns a gauge, summed over the shards. All shards are locked.
func (l *Ledger) Total(gauge int) Total {
	t := Total{Peak: l.peaks[gauge]}
	for _, s := range *l.shards.Load() {
		t.Current += s.gauges[gauge].used
		t.Added += s.gauges[gauge].added
	}
	return t
}

// ResetPeaks sets every peak to the current value. Windows keep theirs. All shards are locked.
func (l *Ledger) ResetPeaks() {
	clear(l.peaks)
	for _, s := range *l.shards.Load() {
		for i := range s.gauges {
			g := &s.gauges[i]
			g.quota = g.used
			l.peaks[i] += g.used
		}
	}
}

// Join adds a shard, without quota.
func (l *Ledger) Join() *Shard {
	l.LockAll()
	s := l.newShard()
	s.mu.Lock()
	list := append(slices.Clone(*l.shards.Load()), s)
	l.shards.Store(&list)
	l.UnlockAll()
	return s
}

// Remove removes a shard that is no longer used. Its counts stay in the totals.
func (l *Ledger) Remove(s *Shard) {
	l.LockAll()
	list := slices.DeleteFunc(slices.Clone(*l.shards.Load()), func(o *Shard) bool { return o == s })
	l.shards.Store(&list)
	for i := range s.gauges {
		from, to := &s.gauges[i], &l.rest.gauges[i]
		to.used += from.used
		to.quota += from.quota
		to.added += from.added
		*from = gauge{}
	}
	for w, quotas := range s.quotas {
		for i, n := range quotas {
			l.rest.quotas[w][i] += n
		}
	}
	s.quotas = nil
	s.removed = true // a reader of an older list skips this shard
	s.mu.Unlock()
	l.UnlockAll()
}
