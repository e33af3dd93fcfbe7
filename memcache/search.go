package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// The path of a hit, under its shard's lock alone: find a free chunk, compute the changes, allocate
// it.

// search serves the request from a free chunk of its shard, if one fits. If a quota does not allow
// it, search retries with all shards locked. No lock is held.
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

// allocCached serves the request from a fitting free chunk, if there is one. Unless all shards are
// locked it does nothing and returns fits false if that would exceed a quota. s.mu is held.
func (s *shard) allocCached(r *request, allLocked bool) (served, fits bool) {
	if s.shards.closed || s.retired || isReleased(r.Pool) {
		r.refused = r.refusal()
		return false, true
	}
	m := s.arena.Find(&r.Want)
	if m == nil {
		if r.growing {
			// recorded here, so that no free comes in between
			s.shards.history.mark(ActionMiss, s.id, r.Bytes)
		}
		return false, true
	}
	// The changes are computed and counted before they are made. If they can't be counted here, the
	// caller searches again with all shards locked.
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

// handOut allocates a chunk as the arena's Fit describes, which has been counted. s.mu is held.
func (s *shard) handOut(m *placement.Chunk, r *request, fit *placement.Fit) {
	m = s.arena.HandOut(m, &r.Want, fit, s.now(r.Kind))
	if fit.Split {
		s.splits++
	}
	// The chunk's owner is set before the lock is released: a Block that finds its serial number
	// here may rely on the other fields.
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

// allocFresh serves the request from new driver memory, which is not in the index, so that no other
// request can take it. All shards are locked.
func (s *shard) allocFresh(m *placement.Chunk, r *request) {
	s.misses++
	s.handOutFresh(m, r, s.arena.Fit(m, &r.Want))
}

// handOutFresh counts and allocates m. All shards are locked.
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
