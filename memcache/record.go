package memcache

// What the history says of blocks, under the lock of their shard: so the entries of a stream are in the order of what it did.

// recordAlloc records a hand-out. s.mu is held.
func (s *shard) recordAlloc(h *handout, r *request) {
	if to := s.shards.history.Load(); to != nil {
		e := s.entry(ActionAlloc, h)
		e.Serial, e.Stack, e.Grew, e.Pool = h.serial, r.stack, r.growing, idOf(r.Pool)
		to.add(&e)
	}
}

// recordFree records the end of a hand-out; at once, it is completed in the same breath. s.mu is held.
func (s *shard) recordFree(h *handout, stack []uintptr, atOnce bool) {
	to := s.shards.history.Load()
	if to == nil {
		return
	}
	e := s.entry(ActionFreeRequested, h)
	e.Serial, e.Stack, e.AtOnce = h.serial, stack, atOnce
	to.add(&e)
	if atOnce && to.ring != nil {
		e.Action, e.Stack, e.AtOnce = ActionFreeCompleted, nil, false
		to.ring.add(&e)
	}
}

// recordBlock records what else happened to a block, by the serial of its hand-out. s.mu is held.
func (s *shard) recordBlock(a Action, h *handout, serial uint64, atOnce bool) {
	if to := s.shards.history.Load(); to != nil {
		e := s.entry(a, h)
		e.Serial, e.AtOnce = serial, atOnce
		to.add(&e)
	}
}

// entry has what entries of a block have in common. s.mu is held.
func (s *shard) entry(a Action, h *handout) HistoryEntry {
	m := h.chunk
	return HistoryEntry{Action: a, Address: m.Ptr(), Size: m.Requested, Stream: s.id, Label: h.label.value(), Block: m.Size(), Pool: idOf(m.Segment().Pool())}
}
