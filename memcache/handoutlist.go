package memcache

// newHandout returns a handout from the shard's list of unused ones. s.mu is held.
func (s *shard) newHandout() *handout {
	if s.unusedHandouts == nil {
		// Allocated in groups, so that the handouts of two shards share no cache line.
		fresh := make([]handout, 16)
		for i := range fresh {
			fresh[i].shard, fresh[i].next = s, s.unusedHandouts
			s.unusedHandouts = &fresh[i]
		}
	}
	h := s.unusedHandouts
	s.unusedHandouts, h.next = h.next, nil
	return h
}

// keepHandout clears an ended handout, whose serial number is 0, and puts it on the shard's list
// for newHandout. s.mu is held.
func (s *shard) keepHandout(h *handout) {
	h.chunk, h.label, h.pending, h.lent, h.inside, h.marks = nil, nil, false, false, h.inside[:0], nil
	h.next, s.unusedHandouts = s.unusedHandouts, h
}
