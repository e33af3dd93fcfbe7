package peaks

import "sync"

// Change adds N, which may be negative, to a gauge.
type Change struct {
	Gauge int
	N     int64
}

// Shard is a part of a ledger with its own lock, which also guards what the caller counts.
//
// A caller that holds a shard must not wait for another one: Add and LockAll lock shards in an
// order that this would violate.
type Shard struct {
	mu      sync.Mutex
	removed bool
	donor   int // index of the last shard with unused quota
	ledger  *Ledger
	gauges  []gauge
	quotas  [][]int64 // of the open windows, in the order of Ledger.windows

	_ [64]byte // keeps the next shard's lock out of this one's last cache line
}

// gauge is a shard's part of a gauge. used may be negative, because an addition in one shard may be
// subtracted in another.
type gauge struct{ used, quota, added int64 }

// Lock locks the shard.
func (s *Shard) Lock() {
	if !s.mu.TryLock() {
		s.lockBusy()
	}
}

// spins is the number of attempts at a busy shard, and spin the pause between them, before a caller
// sleeps: a few microseconds in all. Shards are held for tens of nanoseconds. A sync.Mutex tries
// four times, at long intervals. A caller that sleeps takes longer to wake than that, while others
// wait for the locks that it holds.
const (
	spins = 300
	spin  = 50 // iterations of an empty loop
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

// TryLock locks the shard if it is free.
func (s *Shard) TryLock() bool { return s.mu.TryLock() }

// Unlock unlocks the shard.
func (s *Shard) Unlock() { s.mu.Unlock() }

// Add makes all changes or none, each of a different gauge, at one moment: peaks see them together.
// It reports false, and changes nothing, if a gauge would exceed its limit. The shard must be
// locked, and is locked on return. If its quotas do not suffice, Add unlocks it in between. So the
// caller removes what it subtracts before the call and inserts what it adds after it, and no other
// goroutine finds there what is not counted.
func (s *Shard) Add(changes ...Change) bool {
	if s.tryAdd(changes) || s.claim(changes) {
		return true
	}
	return s.addWithAll(changes)
}

// addWithAll is Add with all shards locked. s is locked on entry and on return.
func (s *Shard) addWithAll(changes []Change) bool {
	// Another shard may be waiting for this one, so it is unlocked before all are locked.
	s.ledger.delayed.Add(1)
	s.mu.Unlock()
	s.ledger.LockAll()
	s.ledger.delayed.Add(-1)
	ok := s.AddStopped(changes...)
	s.ledger.unlockAllBut(s)
	return ok
}

// tryAdd is Add within the shard's quotas, which is all that most operations need: one pass, which
// is undone if it exceeds a quota.
func (s *Shard) tryAdd(changes []Change) bool {
	gauges := s.gauges
	// its sign bit is set if any gauge exceeds its quota: one branch instead of many
	beyond := int64(0)
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
