package memcache

import "math"

// orphanStream is the ID of the shard that Exact keeps what closed streams leave in. No stream has it: nothing is served
// from there.
const orphanStream = math.MaxUint64

// adopt moves the free segments of closed streams to the request's stream, or with Exact, which passes nothing on, to the
// shard of orphans, and drops the shards of closed streams that have no segment any more. Each segment stays in its pool.
// The growth lock is held.
func (c *Cache) inheritSegments(r *request) {
	var closed *shard
	for _, s := range c.table.Load().list {
		if s != r.shard && s.id != orphanStream && s.stream.Closed() {
			closed = s
		}
	}
	if closed == nil {
		return
	}
	into := r.shard
	if c.config.Exact {
		into = c.shardWith(orphanStream, closed.stream)
	}
	c.lockAll()
	defer c.unlockAll()
	if c.closed {
		return // the shards stay, to tell callers so
	}
	for _, s := range c.table.Load().list {
		if s == r.shard || s == into || !s.stream.Closed() {
			continue
		}
		for _, seg := range s.segments {
			if seg.allFree() {
				s.moveSegment(seg, into)
			}
		}
		if len(s.segments) == 0 {
			c.retireShard(s, r.shard)
		}
	}
}

// pass makes a segment without a block in use another shard's. All shards are locked.
func (s *shard) moveSegment(seg *segment, into *shard) {
	pool := seg.freeLists.pool
	for m := seg.first; m != nil; m = m.next {
		seg.indexFor(m).remove(m)
	}
	s.removeSegment(seg)
	into.addSegment(seg, pool)
	for m := seg.first; m != nil; m = m.next {
		if into.id == orphanStream {
			m = s.copyTo(m, into)
		}
		m.shard.Store(into)
		seg.indexFor(m).insert(m)
	}
}

// copyTo replaces the free block m by a copy among the records of another shard. One that stayed would keep the records
// alive that were made together with it: of each closed stream some, for as long as its segment is kept.
func (s *shard) copyTo(m *chunk, into *shard) *chunk {
	n := into.newPart(m, m.ptr, m.size)
	n.unmapped, n.requested, n.freeSince = m.unmapped, m.requested, m.freeSince
	m.insertBefore(n)
	n.next = m.next
	if n.next != nil {
		n.next.prev = n
	}
	s.recycle(m)
	return n
}

// unused reports whether every block is free.
func (seg *segment) allFree() bool {
	for m := seg.first; m != nil; m = m.next {
		if !m.indexed {
			return false
		}
	}
	return true
}

// index is where a block that is not in use belongs.
func (seg *segment) indexFor(m *chunk) interface {
	insert(*chunk)
	remove(*chunk)
} {
	if m.unmapped {
		return seg.unmapped
	}
	return seg.free
}
