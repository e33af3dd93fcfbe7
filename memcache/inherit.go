package memcache

import "math"

// What a closed stream leaves. Its free chunks could never be used again, since chunks are reused on their own stream
// alone, and its shard would stay in every loop over shards: a program that makes a stream for each request would grow
// for ever. PyTorch keeps them, as its streams come from a pool of 32 and are never closed. Here the next request that
// finds no free chunk takes over the segments of closed streams that are free as a whole. That is safe without an event:
// a stream that is closed has run everything that was queued on it. The search for closed streams is part of the slow
// path, right before the driver would be called, and costs hits nothing.

// orphanStream is the ID of the shard that keeps, with Exact, what closed streams leave. No stream has this ID: nothing is
// served from there, as in PyTorch, but a flush returns it.
const orphanStream = math.MaxUint64

// inheritSegments moves the free segments of closed streams to the shard of the request's stream or, with Exact, to the
// shard of orphans, and retires the shards of closed streams that have no segment any more. Each segment stays in its
// pool. The growth lock is held: under it alone shards are retired.
func (c *Cache) inheritSegments(r *request) {
	// Usually no stream was closed: that is seen without locking the shards.
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
		if !s.closedMarked {
			s.closedMarked = true
			c.mark(ActionStreamClosed, s.id, 0)
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

// moveSegment makes a segment without a block in use another shard's. All shards are locked.
func (s *shard) moveSegment(seg *segment, into *shard) {
	pool := seg.freeLists.pool
	// The chunks leave the indexes of the one shard before the segment changes its free lists, and enter the other's after.
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

// copyTo replaces the free chunk m by a copy among the chunks of another shard. One that stayed would keep those alive that
// were made together with it (newChunk): of each closed stream some, for as long as its segment is kept.
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

// allFree reports whether every chunk is free. All shards are locked.
func (seg *segment) allFree() bool {
	for m := seg.first; m != nil; m = m.next {
		if !m.indexed {
			return false
		}
	}
	return true
}

// indexFor returns the set that a chunk which is not in use belongs to.
func (seg *segment) indexFor(m *chunk) interface {
	insert(*chunk)
	remove(*chunk)
} {
	if m.unmapped {
		return seg.unmapped
	}
	return seg.free
}
