package memcache

// adopt moves whole free segments of closed streams to the request's stream, and forgets closed streams that
// have no segment any more. c.mu is held.
func (c *Cache) adopt(r *request) {
	for other, s := range c.streams {
		if other == r.id || !s.Closed() {
			continue
		}
		left := false
		for _, seg := range c.segments {
			m := seg.first
			if m.stream != other {
				continue
			}
			if !m.indexed || !m.whole() || seg.expandable {
				left = true
				continue
			}
			c.free[m.kind].remove(m)
			m.stream = r.id
			c.streams[r.id] = r.stream
			c.free[m.kind].insert(m)
		}
		if !left {
			delete(c.streams, other)
		}
	}
}
