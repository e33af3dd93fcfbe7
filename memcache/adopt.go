package memcache

// adopt moves whole free segments of closed streams to the request's stream, and drops the shards of closed
// streams that have no segment any more. The growth lock is held.
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
		for p, seg := range s.segments {
			m := seg.first
			if !m.indexed || !m.whole() || seg.expandable {
				continue
			}
			s.free[m.kind].remove(m)
			delete(s.segments, p)
			m.shard.Store(r.shard)
			r.shard.segments[p] = seg
			r.shard.free[m.kind].insert(m)
		}
		if len(s.segments) == 0 {
			c.retire(s, r.shard)
		}
	}
}
