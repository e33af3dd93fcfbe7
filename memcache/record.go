package memcache

import "time"

// What the history says of blocks, under the lock of their shard: so the entries of a stream are in the order of what it did.

// recordAlloc records a hand-out. s.mu is held.
func (s *shard) recordAlloc(h *handout, r *request) {
	if to := s.shards.history.Load(); to != nil {
		e := s.event(ActionAlloc, h, h.serial)
		e.grew, e.pool = r.growing, r.Pool
		e.setStack(r.stack)
		to.add(&e)
	}
}

// recordFree records the end of a hand-out; at once, it is completed in the same breath. s.mu is held.
func (s *shard) recordFree(h *handout, stack []uintptr, atOnce bool) {
	to := s.shards.history.Load()
	if to == nil {
		return
	}
	e := s.event(ActionFreeRequested, h, h.serial)
	e.atOnce = atOnce
	e.setStack(stack)
	to.add(&e)
	if atOnce && to.ring != nil {
		e := s.event(ActionFreeCompleted, h, h.serial)
		to.ring.add(e.entry(time.Now()))
	}
}

// recordBlock records what else happened to a block, by the serial of its hand-out. s.mu is held.
func (s *shard) recordBlock(a Action, h *handout, serial uint64, atOnce bool) {
	if to := s.shards.history.Load(); to != nil {
		e := s.event(a, h, serial)
		e.atOnce = atOnce
		to.add(&e)
	}
}

// event has what events of a block have in common. s.mu is held.
func (s *shard) event(a Action, h *handout, serial uint64) historyEvent {
	m, e := h.chunk, event(a)
	e.address, e.size, e.block, e.stream, e.serial, e.label, e.pool = m.Ptr(), m.Requested, m.Size(), s.id, serial, h.label, m.Segment().Pool()
	return e
}
