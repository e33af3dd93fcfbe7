package memcache

// adopt moves whole free segments of closed streams to the request's stream, and drops the shards of closed
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
			m := seg.first
			if !m.indexed || !m.whole() || seg.expandable {
				continue
			}
			pool := seg.lists.pool
			seg.free.remove(m)
			s.disown(seg)
			m.shard.Store(r.shard)
			r.shard.own(seg, pool)
			seg.free.insert(m)
		}
		if len(s.segments) == 0 {
			c.retire(s, r.shard)
		}
	}
}
