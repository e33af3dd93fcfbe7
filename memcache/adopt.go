package memcache

// adopt moves the free segments of closed streams to the request's stream, and drops the shards of closed
// streams that have no segment any more. Each segment stays in its pool. The growth lock is held.
func (c *Cache) adopt(r *request) {
	closed := false
	for _, s := range c.table.Load().list {
		closed = closed || s != r.shard && s.stream.Closed()
	}
	if !closed {
		return
	}
	c.lockAll()
	defer c.unlockAll()
	for _, s := range c.table.Load().list {
		if s == r.shard || !s.stream.Closed() {
			continue
		}
		for _, seg := range s.segments {
			if !seg.unused() {
				continue
			}
			pool := seg.lists.pool
			for m := seg.first; m != nil; m = m.next {
				seg.index(m).remove(m)
			}
			s.disown(seg)
			r.shard.own(seg, pool)
			for m := seg.first; m != nil; m = m.next {
				m.shard.Store(r.shard)
				seg.index(m).insert(m)
			}
		}
		if len(s.segments) == 0 {
			c.retire(s, r.shard)
		}
	}
}

// unused reports whether every block is free.
func (s *segment) unused() bool {
	for m := s.first; m != nil; m = m.next {
		if !m.indexed {
			return false
		}
	}
	return true
}

// index is where a block that is not in use belongs.
func (s *segment) index(m *meta) interface {
	insert(*meta)
	remove(*meta)
} {
	if m.unmapped {
		return s.unmapped
	}
	return s.free
}
