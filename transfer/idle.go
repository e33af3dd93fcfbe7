package transfer

// Idle slabs are in two lists of their shard: a stack for each class, of which the last released is
// handed out first, and one list of all by age, of which the oldest is evicted first. Both are
// linked through the slabs, so that putting one in and taking one out from anywhere, each a few
// writes under the shard's lock, need no Go memory and no search.

// pushIdle makes a slab idle that nothing uses, and that is counted so.
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

// removeIdle takes a slab from the idle ones. The caller counts it as what it becomes.
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
