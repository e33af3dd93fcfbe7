package memcache

// find returns the free block that serves the request, or nil (get_free_block): the smallest of the stream
// and pool that fits, at the lowest address, unless its size is not for this request. s.mu is held.
func (s *shard) find(x *index, r *request) *meta {
	m := x.from(r.rounded)
	if m == nil {
		return nil
	}
	if m.segment.expandable {
		if m = awayFromTail(x, m); !s.cache.config.Exact {
			return m // what is left can be split off, and given back
		}
	}
	limit := s.cache.rules.maxSplit
	if r.rounded < limit && m.size >= limit {
		return nil // that would split what is to stay whole
	}
	if r.rounded >= limit && m.size >= r.rounded+s.cache.rules.maxNonSplitRounding {
		return nil // that would waste too much
	}
	return m
}

// awayFromTail goes on from m to a block that has less room to grow, in an expandable segment: holes are used
// before the end, which can be given back.
func awayFromTail(x *index, m *meta) *meta {
	for m.segment.expandable {
		next := x.after(m)
		if next == nil || room(next) >= room(m) {
			break
		}
		m = next
	}
	return m
}

// room is a block's size with the unmapped addresses after it.
func room(m *meta) int64 {
	if m.next != nil && m.next.unmapped {
		return m.size + m.next.size
	}
	return m.size
}
