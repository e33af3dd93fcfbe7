package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// What a hit does, with its shard's lock alone: look for a free chunk, know what handing it out changes, hand it out.

// search serves the request from a free chunk of its shard, if there is one. If a quota is in the way it tries again
// with all shards locked. No lock is held.
func (r *request) search() (served bool, err error) {
	s := r.shard
	s.mu.Lock()
	served, fits := s.allocCached(r, false)
	s.mu.Unlock()
	if !fits {
		s.shards.lockAll()
		served, _ = s.allocCached(r, true)
		s.shards.unlockAll()
	}
	return served, r.refused
}

// allocCached hands out the free chunk that serves the request, if there is one. Unless all shards are locked it does
// nothing if that would go beyond a quota, and says so: fits is false. s.mu is held.
func (s *shard) allocCached(r *request, allLocked bool) (served, fits bool) {
	if s.shards.closed || s.retired || isReleased(r.Pool) {
		r.refused = r.refusal()
		return false, true
	}
	m := s.arena.Find(&r.Want)
	if m == nil {
		if r.growing {
			s.shards.history.mark(ActionMiss, s.id, r.Bytes) // here, so that nothing was freed since
		}
		return false, true
	}
	// What is about to change is known, and counted, before anything does: what can't be counted here is left alone, and
	// looked for again with all shards locked.
	fit := s.arena.Fit(m, &r.Want)
	var d delta
	r.handOutDelta(&fit, &d)
	r.born = s.epoch
	if !s.add(r.Pool, r.Kind, &d, allLocked) {
		return false, false
	}
	s.hits++
	r.hit = true
	if r.Pool != nil {
		countIn(r.Pool, r.Kind, &d)
	}
	s.handOut(m, r, &fit)
	return true, true
}

// handOut hands out a chunk as the arena's Fit said, which has been counted. s.mu is held.
func (s *shard) handOut(m *placement.Chunk, r *request, fit *placement.Fit) {
	m = s.arena.HandOut(m, &r.Want, fit, s.now(r.Kind))
	if fit.Split {
		s.splits++
	}
	// The chunk's owner is set before the lock is given up: a Block that finds its serial number
	// may trust the rest.
	s.sequence++
	r.sequence = s.sequence
	h := s.newHandout()
	m.Tag = h
	h.chunk, h.serial = m, s.nextSerial()
	h.stack, h.label, h.task, h.born = r.stack, r.label, r.task, r.born
	s.publish()
	s.recordAlloc(h, r)
	if r.scope != nil {
		h.charge(r.scope)
	}
	b := &r.block
	b.handout, b.chunk, b.serial, b.ptr, b.size, b.stream = h, m, h.serial, m.Ptr(), fit.Size, s.id
}

// allocFresh hands out memory for which the driver was asked. It is in no index yet, so that no other request takes it
// before. All shards are locked.
func (s *shard) allocFresh(m *placement.Chunk, r *request) {
	s.misses++
	s.handOutFresh(m, r, s.arena.Fit(m, &r.Want))
}

// handOutFresh counts what handing m out changes, and hands it out. All shards are locked.
func (s *shard) handOutFresh(m *placement.Chunk, r *request, fit placement.Fit) {
	var d delta
	r.handOutDelta(&fit, &d)
	r.born = s.epoch
	s.add(r.Pool, r.Kind, &d, true)
	if r.Pool != nil {
		countIn(r.Pool, r.Kind, &d)
	}
	s.handOut(m, r, &fit)
}
