package peaks

// How a shard gets more quota than it has. A claim needs two locks at a time, and serves programs whose goroutines take
// turns: the sum stays below the peak while each shard's use rises and falls. Only AddStopped, with all locks, raises a
// peak, and a program whose steps repeat stops raising it.

// claim is tryAdd with what the changes need out of the unused quotas of other shards, if that is enough. The
// others' locks are only tried, so that their order does not matter; who is busy is passed over. It begins with who
// could give the last time. s is locked.
func (s *Shard) claim(changes []Change) bool {
	shards := *s.ledger.shards.Load()
	for i := range shards {
		donor := (s.donor + i) % len(shards)
		o := shards[donor]
		if o == s || !o.mu.TryLock() {
			continue
		}
		if !o.removed {
			s.take(o, changes, true)
		}
		o.mu.Unlock()
		if s.tryAdd(changes) {
			s.donor = donor
			return true
		}
	}
	return false // what was taken stays here, which is as good a place as any
}

// take moves unused quotas of o to s, as far as the changes need them. If generous, half of what o does not use goes
// along: then s does not come for each change, and o still has some. Both are locked.
func (s *Shard) take(o *Shard, changes []Change, generous bool) {
	for _, c := range changes {
		mine, theirs := &s.gauges[c.Gauge], &o.gauges[c.Gauge]
		take(&mine.quota, mine.used+c.N, &theirs.quota, theirs.used, generous)
		for w := range s.quotas {
			take(&s.quotas[w][c.Gauge], mine.used+c.N, &o.quotas[w][c.Gauge], theirs.used, generous)
		}
	}
}

// take raises a quota towards need by what the other has beyond its use.
func take(quota *int64, need int64, other *int64, used int64, generous bool) {
	missing := need - *quota
	if missing <= 0 {
		return
	}
	if generous {
		missing = max(missing, (*other-used)/2)
	}
	n := min(missing, *other-used)
	*quota += n
	*other -= n
}

// AddStopped is Add for who has all shards locked, and leaves them so.
func (s *Shard) AddStopped(changes ...Change) bool {
	l := s.ledger
	for _, c := range changes {
		if limit := max(l.limits[c.Gauge], 0); limit != NoLimit && l.Total(c.Gauge).Current+c.N > limit {
			return false
		}
	}
	for _, o := range *l.shards.Load() {
		if o != s {
			s.take(o, changes, false)
		}
	}
	// As long as another shard had unused quota the sum was below the peak. Now it has none: what is missing is new.
	var rose []func()
	for _, c := range changes {
		g := &s.gauges[c.Gauge]
		need := g.used + c.N
		l.peaks[c.Gauge] += raise(&g.quota, need)
		for w, window := range l.windows {
			n := raise(&s.quotas[w][c.Gauge], need)
			window.peaks[c.Gauge] += n
			if n > 0 && window.rose != nil {
				rose = append(rose, func() { window.rose(c.Gauge) })
			}
		}
	}
	s.tryAdd(changes) // it fits
	for _, f := range rose {
		f()
	}
	return true
}

// raise raises a quota to need, and returns by how much.
func raise(quota *int64, need int64) int64 {
	n := max(need-*quota, 0)
	*quota += n
	return n
}
