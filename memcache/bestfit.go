package memcache

// bestFit returns the free chunk that serves the request, or nil (get_free_block): the smallest of the stream and pool that
// fits, at the lowest address, unless its size is not for this request. Best fit with the lowest address keeps the large
// free chunks whole for large requests; it is PyTorch's policy, and recordings of PyTorch replay to the same addresses
// only with it. s.mu is held.
func (s *shard) bestFit(x *index, r *request) *chunk {
	m := x.atLeast(r.rounded)
	if m == nil {
		return nil
	}
	if m.segment.expandable {
		if m = awayFromTail(x, m); !s.cache.config.Exact {
			return m // what is left can be split off, and given back
		}
	}
	limit := s.cache.sizing.maxSplit
	if r.rounded < limit && m.size >= limit {
		return nil // that would split what is to stay whole
	}
	if r.rounded >= limit && m.size >= r.rounded+s.cache.sizing.maxNonSplitRounding {
		return nil // that would waste too much
	}
	return m
}

// awayFromTail goes on from m to a chunk that has less room to grow, in an expandable segment: holes are used before the
// end, which can be given back.
func awayFromTail(x *index, m *chunk) *chunk {
	for m.segment.expandable {
		next := x.after(m)
		if next == nil || sizeWithTail(next) >= sizeWithTail(m) {
			break
		}
		m = next
	}
	return m
}

// sizeWithTail is a chunk's size with the unmapped addresses after it, into which it can grow.
func sizeWithTail(m *chunk) int64 {
	if m.next != nil && m.next.unmapped {
		return m.size + m.next.size
	}
	return m.size
}
