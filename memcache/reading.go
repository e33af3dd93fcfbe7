package memcache

// Reading is the consistent state of a cache at one moment.
type Reading struct {
	Config      Config
	Snapshot    Snapshot // of Cache.Snapshot
	Profile     Profile  // of Cache.Profile
	PeakProfile Profile  // of Cache.PeakProfile
	// GraphProfile is the result of Cache.GraphProfile.
	GraphProfile GraphProfile
	// MemoryLimit and MaxMemoryReserved are bytes, of the Cache methods with these names.
	MemoryLimit, MaxMemoryReserved int64
}

// Reading returns the state of the cache as one consistent copy. Requests block while it walks the
// blocks four times. It copies the history afterwards, as [Cache.Snapshot] does.
func (c *Cache) Reading() Reading {
	total := c.dev.Properties().TotalMemory
	c.shards.lockAll()
	l := &c.ledger
	snapshot, ring, end := c.shards.snapshot()
	now, nowMark := l.notesNow(), l.markNow()
	peak, peakMark := l.notesOfPeak(func(s *shard) *peakLog { return &s.peak }), l.peak
	r := Reading{Config: *c.shards.config(), Snapshot: snapshot, MemoryLimit: min(l.limit, total), MaxMemoryReserved: l.stats.ReservedBytes.All.Peak}
	free := c.freeOfGraphs(&r.GraphProfile)
	c.shards.unlockAll()
	r.GraphProfile.hold(free)
	if ring != nil {
		r.Snapshot.History = ring.before(end)
	}
	r.Profile, r.PeakProfile = newProfile(now, nowMark), newProfile(peak, peakMark)
	return r
}
