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
func (s *Shard) Lock() { s.mu.Lock() }

// TryLock locks the shard if nobody has.
func (s *Shard) TryLock() bool { return s.mu.TryLock() }

// Unlock unlocks it.
func (s *Shard) Unlock() { s.mu.Unlock() }

// Add makes the changes, each of another gauge, all or none, as one: peaks see them together. It reports false if a gauge would exceed its limit
// and it changes nothing then; a gauge without a limit never does. The shard is locked, before and after. In between it
// may be unlocked, if the shard's quotas are not enough: so the caller takes out what it subtracts before, and puts in
// what it adds after, and nobody finds there what is not counted.
func (s *Shard) Add(changes ...Change) bool {
	if s.fits(changes) || s.claim(changes) {
		s.apply(changes)
		return true
	}
	// Another shard may be waiting for this one, so it is let go before all are locked.
	s.ledger.delayed.Add(1)
	s.mu.Unlock()
	s.ledger.LockAll()
	s.ledger.delayed.Add(-1)
	ok := s.AddStopped(changes...)
	s.ledger.unlockAllBut(s)
	return ok
}

// fits reports whether the changes leave every gauge within its quotas. What falls always does: use is within quota.
func (s *Shard) fits(changes []Change) bool {
	for _, c := range changes {
		if g := &s.gauges[c.Gauge]; c.N > g.quota-g.used {
			return false
		}
	}
	for _, quotas := range s.quotas {
		for _, c := range changes {
			if c.N > quotas[c.Gauge]-s.gauges[c.Gauge].used {
				return false
			}
		}
	}
	return true
}

func (s *Shard) apply(changes []Change) {
	for _, c := range changes {
		g := &s.gauges[c.Gauge]
		g.used += c.N
		g.added += max(c.N, 0)
	}
}
