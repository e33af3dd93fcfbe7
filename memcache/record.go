package memcache

import "time"

// The history's entries of blocks. They are made under the lock of the block's shard, so the
// entries of a stream are in its order.

// recordAlloc records an allocation. s.mu is held.
func (s *shard) recordAlloc(h *handout, r *request) {
	if to := s.shards.history.Load(); to != nil {
		e := s.event(ActionAlloc, h, h.serial)
		e.grew, e.pool = r.growing, r.Pool
		e.setStack(r.stack)
		to.add(&e)
	}
}

// recordFree records a free; with atOnce it is also completed. s.mu is held.
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

// recordBlock records another action on a block, with the serial of its allocation. s.mu is held.
func (s *shard) recordBlock(a Action, h *handout, serial uint64, atOnce bool) {
	if to := s.shards.history.Load(); to != nil {
		e := s.event(a, h, serial)
		e.atOnce = atOnce
		to.add(&e)
	}
}

// event returns an event with the fields that all events of a block share. s.mu is held.
func (s *shard) event(a Action, h *handout, serial uint64) historyEvent {
	m, e := h.chunk, event(a)
	e.address, e.size, e.block, e.stream, e.serial, e.label, e.pool = m.Ptr(), m.Requested, m.Size(), s.id, serial, h.label, m.Segment().Pool()
	return e
}
