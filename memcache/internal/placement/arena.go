package placement

import (
	"iter"
	"maps"

	"github.com/cistern-ml/cistern/device"
)

// Arena is the memory of one stream. It has no lock of its own: the caller of a method must have
// exclusive access.
type Arena struct {
	rules    *Rules
	stream   uint64
	orphans  bool
	own      lists // of the default pool
	private  map[*Pool]*lists
	segments map[device.Ptr]*Segment
	unused   *Chunk // linked by next; see newChunk
}

// Init readies the arena of a stream, or empties it. The arena must not be copied afterwards. With
// orphans it contains segments of closed streams, which keep their stream IDs.
func (a *Arena) Init(rules *Rules, stream uint64, orphans bool) {
	*a = Arena{rules: rules, stream: stream, orphans: orphans, segments: make(map[device.Ptr]*Segment)}
}

// SetRules sets the rules for later operations on an arena.
func SetRules(a *Arena, rules *Rules) { a.rules = rules }

// Len returns the number of segments.
func (a *Arena) Len() int { return len(a.segments) }

// Segments returns the segments, in no order.
func (a *Arena) Segments() iter.Seq[*Segment] { return maps.Values(a.segments) }

// Pools returns the private pools with segments in the arena, in no order.
func (a *Arena) Pools() iter.Seq[*Pool] { return maps.Keys(a.private) }

// Mapped reports whether a pool has memory here, and not only addresses.
func (a *Arena) Mapped(p *Pool) bool {
	for _, seg := range a.segments {
		for m := seg.first; seg.lists.pool == p && m != nil; m = m.next {
			if !m.unmapped {
				return true
			}
		}
	}
	return false
}

// NewSegment adds memory from the driver. Its chunk is taken out, so HandOut or PutBack must
// follow.
func (a *Arena) NewSegment(p device.Ptr, bytes int64, k Kind, pool *Pool) *Chunk {
	m := a.newChunk()
	m.segment = &Segment{ptr: p, bytes: bytes, first: m, kind: k}
	m.ptr, m.size, m.kind = p, bytes, k
	a.add(m.segment, pool)
	return m
}

// add makes a segment, whose chunks are in no set, a segment of the arena.
func (a *Arena) add(seg *Segment, p *Pool) {
	l := a.listsFor(p)
	if l == nil {
		l = &lists{pool: p}
		if a.private == nil {
			a.private = make(map[*Pool]*lists)
		}
		a.private[p] = l
	}
	l.segments++
	seg.lists, seg.free, seg.unmapped = l, &l.free[seg.kind], &l.unmapped[seg.kind]
	if !a.orphans {
		seg.stream = a.stream
	}
	a.segments[seg.ptr] = seg
}

// Remove removes a segment of one chunk, which is taken out or unmapped, after the driver has freed
// its memory.
func (a *Arena) Remove(seg *Segment) {
	m := seg.first
	if m.unmapped {
		seg.unmapped.remove(m)
	}
	a.drop(seg)
	a.recycle(m)
}

// drop undoes add.
func (a *Arena) drop(seg *Segment) {
	delete(a.segments, seg.ptr)
	l := seg.lists
	// unused chunks may still refer to the segment
	seg.lists, seg.free, seg.unmapped = nil, nil, nil
	if l.segments--; l.segments == 0 && l.pool != nil {
		delete(a.private, l.pool)
	}
}

// listsFor returns the lists of a pool, or nil if the arena has no segment of it.
func (a *Arena) listsFor(p *Pool) *lists {
	if p == nil {
		return &a.own
	}
	return a.private[p]
}

// MoveFree moves the segments without used or taken-out chunks to another arena. Each stays in its
// pool.
func (a *Arena) MoveFree(into *Arena) {
	for _, seg := range a.segments {
		if !seg.allFree() {
			continue
		}
		// The chunks leave the sets of this arena before the segment changes its lists, and enter
		// the other arena's sets afterwards.
		for m := seg.first; m != nil; m = m.next {
			seg.setFor(m).remove(m)
		}
		pool := seg.lists.pool
		a.drop(seg)
		into.add(seg, pool)
		for m := seg.first; m != nil; m = m.next {
			if into.orphans {
				m = a.copyTo(m, into)
			}
			seg.setFor(m).insert(m)
		}
	}
	// Chunks are allocated in groups, and one keeps its whole group alive. So into may own all of
	// them.
	for m := a.unused; m != nil && len(a.segments) == 0 && !into.orphans; m = a.unused {
		a.unused = m.next
		into.recycle(m)
	}
}

// copyTo replaces the free chunk m, which is in no set, by a copy in another arena. A chunk of a
// closed stream that stayed would keep its group alive as long as its segment, but an arena of
// orphans has no use for the rest of the group.
func (a *Arena) copyTo(m *Chunk, into *Arena) *Chunk {
	n := into.newChunk()
	*n = *m
	n.Tag = nil
	if n.prev != nil {
		n.prev.next = n
	} else {
		n.segment.first = n
	}
	if n.next != nil {
		n.next.prev = n
	}
	a.recycle(m)
	return n
}

// newChunk returns an unused chunk, which the caller links into a segment.
func (a *Arena) newChunk() *Chunk {
	if a.unused == nil {
		// Allocated in groups, so that the chunks of two arenas share no cache line.
		fresh := make([]Chunk, 16)
		for i := range fresh {
			a.recycle(&fresh[i])
		}
	}
	m := a.unused
	a.unused, m.next = m.next, nil
	m.Requested, m.freeSince, m.unmapped = 0, 0, false
	return m
}

// recycle keeps a chunk that no longer describes memory for newChunk.
func (a *Arena) recycle(m *Chunk) {
	m.Tag, m.segment, m.prev, m.used = nil, nil, nil, false
	m.next = a.unused
	a.unused = m
}

// newPart returns a chunk for a part of m's memory. The caller links it in and shortens m.
func (a *Arena) newPart(m *Chunk, p device.Ptr, size int64) *Chunk {
	n := a.newChunk()
	n.segment, n.ptr, n.size, n.kind = m.segment, p, size, m.kind
	return n
}
