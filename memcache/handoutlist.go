package memcache

// keepHandout puts a handout that has ended, whose serial number is 0, on the shard's list for newHandout, without
// what it referred to. s.mu is held.
func (s *shard) keepHandout(h *handout) {
	h.chunk, h.label, h.pending, h.lent, h.inside, h.marks = nil, nil, false, false, h.inside[:0], nil
	h.next, s.unusedHandouts = s.unusedHandouts, h
}
