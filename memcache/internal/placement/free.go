package placement

// Freed says what Free of a chunk in use will do to what keeps segments: its free neighbours are no inactive parts of a
// segment any more, and what they become together may be one. It changes nothing.
func (m *Chunk) Freed() (d Inactive) {
	if m.segment.expandable {
		return d
	}
	// As if merged: what is beyond the free neighbours decides whether the result is a part of a segment or a whole one.
	size, before, after := m.size, m.prev, m.next
	if before.mergeable() {
		d.Blocks--
		d.Bytes -= before.size
		size, before = size+before.size, before.prev
	}
	if after.mergeable() {
		d.Blocks--
		d.Bytes -= after.size
		size, after = size+after.size, after.next
	}
	if before != nil || after != nil {
		d.Blocks++
		d.Bytes += size
	}
	return d
}

// Free makes a chunk available as of now: it absorbs its free neighbours and enters the index (free_block). It returns how
// many merged.
func (a *Arena) Free(m *Chunk, now int64) (merged int64) {
	m.used = false
	merged = a.absorbNeighbours(m)
	m.insertFree(now)
	return merged
}

// absorbNeighbours merges a chunk that is in no set with its free neighbours, and returns how many those were.
func (a *Arena) absorbNeighbours(m *Chunk) (merged int64) {
	if m.prev.mergeable() {
		a.absorb(m, m.prev)
		merged++
	}
	if m.next.mergeable() {
		a.absorb(m, m.next)
		merged++
	}
	return merged
}

// absorb takes the neighbour n out of its set and into m, and recycles its record.
func (a *Arena) absorb(m, n *Chunk) {
	if n.unmapped {
		n.segment.unmapped.remove(n)
	} else {
		n.segment.free.remove(n)
	}
	m.absorb(n)
	a.recycle(n)
}

// insertFree puts a chunk into the index, as of now.
func (m *Chunk) insertFree(now int64) {
	m.freeSince = now
	m.segment.free.insert(m)
}

// TakeOut takes a free chunk out of the index: nobody gets it, and it merges with nothing, until PutBack.
func (m *Chunk) TakeOut() { m.segment.free.remove(m) }

// PutBack undoes TakeOut for a chunk whose neighbours may have become free meanwhile. Its age goes on. It returns how many
// merged.
func (a *Arena) PutBack(m *Chunk) (merged int64) {
	merged = a.absorbNeighbours(m)
	m.insertFree(m.freeSince)
	return merged
}
