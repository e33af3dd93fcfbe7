package peaks

import "sync"

// Change is what an operation adds to a gauge; N may be negative.
type Change struct {
	Gauge int
	N     int64
}

// Shard is a part of a ledger with a lock of its own, which guards also what its user counts with it.
//
// Whoever holds a shard must not wait for another one: Add and LockAll wait for shards in an order that this would break.
type Shard struct {
	mu      sync.Mutex
	removed bool
	donor   int // index of the shard that had quota to spare the last time
	ledger  *Ledger
	gauges  []gauge
	quotas  [][]int64 // of the open windows, in the order of Ledger.windows

	_ [64]byte // the next shard's lock is not in this one's last cache line
}

// gauge is a shard's part of a gauge. used may be negative: what is added in one shard may be subtracted in another.
type gauge struct{ used, quota, added int64 }

// Lock locks the shard.
func (s *Shard) Lock() {
	if !s.mu.TryLock() {
		s.lockBusy()
	}
}

// spins and spin are how often, and how long each time, a caller tries a busy shard again before it
// sleeps: a few microseconds in all. Shards are held for tens of nanoseconds. A sync.Mutex looks
// four times, at long intervals, and who sleeps takes longer to wake than that, while others come
// for what it has.
const (
	spins = 300
	spin  = 50 // passes of an empty loop
)

func (s *Shard) lockBusy() {
	for range spins {
		for range spin {
		}
		if s.mu.TryLock() {
			return
		}
	}
	s.mu.Lock()
}

// TryLock locks the shard if nobody has.
func (s *Shard) TryLock() bool { return s.mu.TryLock() }

// Unlock unlocks it.
func (s *Shard) Unlock() { s.mu.Unlock() }

// Add makes the changes, each of another gauge, all or none, as one: peaks see them together. It reports false if a gauge would exceed its limit
// and it changes nothing then; a gauge without a limit never does. The shard is locked, before and after. In between it
// may be unlocked, if the shard's quotas are not enough: so the caller takes out what it subtracts before, and puts in
// what it adds after, and nobody finds there what is not counted.
func (s *Shard) Add(changes ...Change) bool {
	if s.tryAdd(changes) || s.claim(changes) {
		return true
	}
	return s.addWithAll(changes)
}

// addWithAll is Add with all shards locked. s is locked, before and after.
func (s *Shard) addWithAll(changes []Change) bool {
	// Another shard may be waiting for this one, so it is let go before all are locked.
	s.ledger.delayed.Add(1)
	s.mu.Unlock()
	s.ledger.LockAll()
	s.ledger.delayed.Add(-1)
	ok := s.AddStopped(changes...)
	s.ledger.unlockAllBut(s)
	return ok
}

// tryAdd is Add within the shard's quotas. It is what most operations of a program pay: one pass, which is undone if
// it was too much.
func (s *Shard) tryAdd(changes []Change) bool {
	gauges := s.gauges
	beyond := int64(0) // its sign bit is set if one is: one branch in place of many
	for i := range changes {
		g, n := &gauges[changes[i].Gauge], changes[i].N
		g.used += n
		g.added += max(n, 0)
		beyond |= g.quota - g.used
	}
	for _, quotas := range s.quotas {
		for _, c := range changes {
			beyond |= quotas[c.Gauge] - gauges[c.Gauge].used
		}
	}
	if beyond < 0 {
		for _, c := range changes {
			gauges[c.Gauge].used -= c.N
			gauges[c.Gauge].added -= max(c.N, 0)
		}
	}
	return beyond >= 0
}
