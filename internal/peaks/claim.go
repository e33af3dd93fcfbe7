package peaks

// A claim moves quota between two shards, with two locks. It serves programs whose goroutines take
// turns: the sum stays below the peak while each shard's use rises and falls. Only AddStopped
// raises a peak, with all shards locked, and a program whose steps repeat stops raising it.

// claim is tryAdd with the missing quota taken from the unused quotas of other shards, if those
// suffice. The other locks are only tried, so their order does not matter, and busy shards are
// skipped. It starts with the shard that had quota the last time. s is locked.
func (s *Shard) claim(changes []Change) bool {
	shards := *s.ledger.shards.Load()
	for i := range shards {
		donor := (s.donor + i) % len(shards)
		o := shards[donor]
		if o == s || !o.mu.TryLock() {
			continue
		}
		if !o.removed {
			s.take(o, changes)
		}
		o.mu.Unlock()
		if s.tryAdd(changes) {
			s.donor = donor
			return true
		}
	}
	return false // quota that was taken stays here
}

// take moves unused quotas of o to s, as far as the changes need them but at least half of them, so
// that s does not claim for each change and o keeps some. Both are locked.
func (s *Shard) take(o *Shard, changes []Change) {
	for _, c := range changes {
		mine, theirs := &s.gauges[c.Gauge], &o.gauges[c.Gauge]
		takeHalf(&mine.quota, mine.used+c.N, &theirs.quota, theirs.used)
		for w := range s.quotas {
			takeHalf(&s.quotas[w][c.Gauge], mine.used+c.N, &o.quotas[w][c.Gauge], theirs.used)
		}
	}
}

// takeHalf calls Take if need exceeds the quota, for at least half of the other's unused quota.
func takeHalf(quota *int64, need int64, other *int64, used int64) {
	if need > *quota {
		Take(quota, max(need, *quota+(*other-used)/2), other, used)
	}
}

// AddStopped is Add for a caller that holds the locks of all shards.
func (s *Shard) AddStopped(changes ...Change) bool {
	l := s.ledger
	for _, c := range changes {
		if limit := max(l.limits[c.Gauge], 0); limit != NoLimit && l.Total(c.Gauge).Current+c.N > limit {
			return false
		}
	}
	var rose []func()
	shards := *l.shards.Load()
	for _, c := range changes {
		Cover(&l.peaks[c.Gauge], s, shards, c.N, func(s *Shard) (int64, *int64) {
			g := &s.gauges[c.Gauge]
			return g.used, &g.quota
		})
		for w, window := range l.windows {
			if Cover(&window.peaks[c.Gauge], s, shards, c.N, func(s *Shard) (int64, *int64) {
				return s.gauges[c.Gauge].used, &s.quotas[w][c.Gauge]
			}) && window.rose != nil {
				rose = append(rose, func() { window.rose(c.Gauge) })
			}
		}
	}
	s.tryAdd(changes) // it fits now
	for _, f := range rose {
		f()
	}
	return true
}
