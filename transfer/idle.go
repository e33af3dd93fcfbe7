package transfer

// Idle slabs are in two lists of their shard: a stack for each class, from which Get takes the last
// released slab, and one list of all by age, from which the oldest is evicted first. Both are
// linked through the slabs, so that insertion and removal anywhere are a few writes under the
// shard's lock, without Go memory and without a search.

// pushIdle adds an unused slab, which is already counted as idle, to the idle lists.
func (sh *shard) pushIdle(s *slab) {
	sh.tick++
	s.since = sh.tick
	top := &sh.idle[s.class]
	if s.below = *top; s.below != nil {
		s.below.above = s
	}
	*top = s
	if s.older = sh.newest; s.older != nil {
		s.older.newer = s
	} else {
		sh.oldest = s
	}
	sh.newest = s
}

// removeIdle removes a slab from the idle lists. The caller updates the gauges.
func (sh *shard) removeIdle(s *slab) {
	if s.above != nil {
		s.above.below = s.below
	} else {
		sh.idle[s.class] = s.below
	}
	if s.below != nil {
		s.below.above = s.above
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		sh.newest = s.older
	}
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		sh.oldest = s.newer
	}
	s.newer, s.older = nil, nil
	s.above, s.below = nil, nil
}
