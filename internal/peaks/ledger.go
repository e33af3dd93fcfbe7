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

// Ledger has the peaks and limits of gauges, which are numbered from 0. Its shards have the counts. All methods may be
// called from any goroutine that holds no shard.
type Ledger struct {
	limits   []int64
	shards   atomic.Pointer[[]*Shard] // replaced with all shards locked; the first is rest
	rest     *Shard                   // has what removed shards had
	delayed  atomic.Int64             // Adds that have unlocked their shard to lock all
	stopping sync.Mutex               // of who locks all shards

	// Guarded by the locks of all shards.
	peaks   []int64
	windows []*Window
}

// Total is a gauge, summed over the shards.
type Total struct {
	// Current is its value now, Peak the largest one since the ledger was made or ResetPeaks.
	Current, Peak int64
	// Added is the sum of all that was added, and never falls: what was subtracted is Added - Current.
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

// apart are n values of which no other shard's are in the same cache line.
func apart[T any](n int) []T { return make([]T, n, n+128/int(unsafe.Sizeof(*new(T)))) }

// LockAll locks every shard, in an order that is the same for all who do. Until UnlockAll nothing changes but by
// [Shard.AddStopped], and what is read is of one moment.
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

// Delayed is how many Adds have left their shard's lock to lock all. What they add is not counted, and what their callers
// hold may have been changed for it. All shards are locked.
func (l *Ledger) Delayed() int64 { return l.delayed.Load() }

// Total sums a gauge up. All shards are locked.
func (l *Ledger) Total(gauge int) Total {
	t := Total{Peak: l.peaks[gauge]}
	for _, s := range *l.shards.Load() {
		t.Current += s.gauges[gauge].used
		t.Added += s.gauges[gauge].added
	}
	return t
}

// ResetPeaks makes every peak the present value. Windows keep theirs. All shards are locked.
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

// Join adds a shard. It has no quota yet.
func (l *Ledger) Join() *Shard {
	l.LockAll()
	s := l.newShard()
	s.mu.Lock()
	list := append(slices.Clone(*l.shards.Load()), s)
	l.shards.Store(&list)
	l.UnlockAll()
	return s
}

// Remove takes a shard out, which nobody uses any more. What it counts still counts.
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
	s.removed = true // a reader of an older list finds nothing here
	s.mu.Unlock()
	l.UnlockAll()
}
