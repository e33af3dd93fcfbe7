package placement

// Freed returns the effect of Free on the inactive chunks: the free neighbours of m no longer count
// as inactive parts of a segment, and the merged chunk may count. It changes nothing.
func (m *Chunk) Freed() (d Inactive) {
	if m.segment.expandable {
		return d
	}
	// As if merged: the chunks beyond the free neighbours determine whether the result is a part of
	// a segment or a whole one.
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

// Free makes a chunk available as of now: it absorbs its free neighbours and enters the index
// (free_block). It returns the number of merged chunks.
func (a *Arena) Free(m *Chunk, now int64) (merged int64) {
	m.used = false
	merged = a.absorbNeighbours(m)
	m.insertFree(now)
	return merged
}

// absorbNeighbours merges a chunk that is in no set with its free neighbours, and returns their
// number.
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

// absorb removes the neighbour n from its set, merges it into m, and recycles it.
func (a *Arena) absorb(m, n *Chunk) {
	if n.unmapped {
		n.segment.unmapped.remove(n)
	} else {
		n.segment.free.remove(n)
	}
	m.absorb(n)
	a.recycle(n)
}

// insertFree inserts a chunk into the index, free as of now.
func (m *Chunk) insertFree(now int64) {
	m.freeSince = now
	m.segment.free.insert(m)
}

// TakeOut takes a free chunk out of the index: until PutBack it serves no request, and merges with
// nothing.
func (m *Chunk) TakeOut() { m.segment.free.remove(m) }

// PutBack undoes TakeOut for a chunk whose neighbours may have become free meanwhile. It keeps its
// age. PutBack returns the number of merged chunks.
func (a *Arena) PutBack(m *Chunk) (merged int64) {
	merged = a.absorbNeighbours(m)
	m.insertFree(m.freeSince)
	return merged
}
