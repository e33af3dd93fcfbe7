package placement

import "github.com/cistern-ml/cistern/device"

// Chunk is one piece of a segment, in use or free. PyTorch calls it a block; in package memcache a
// Block is the caller's handle. The chunks of a segment form a list in address order that tiles it.
// Splitting adds a chunk, and merging with a free neighbour removes one. (Variables of this type
// are called m, for memory.)
//
// The links of the free index are in the chunk, so that a set of free chunks needs no Go
// allocation.
//
// A chunk is in one of these states:
//
//	in use     used                    a caller holds it
//	free       indexed, !unmapped      it is in the free index of its lists
//	unmapped   indexed, unmapped       addresses of an expandable segment without memory
//	taken out  none of these           the caller grows, returns or unmaps it
//	unused     linked by next alone    it describes no memory; see newChunk
//
// A chunk that is taken out does not merge with a neighbour that is freed meanwhile.
type Chunk struct {
	ptr        device.Ptr
	size       int64
	segment    *Segment
	prev, next *Chunk // neighbours in the segment

	tree        *tree  // the tree that contains it; nil: it is in no index
	left, right *Chunk // the links of the tree
	priority    uint32
	kind        Kind
	used        bool
	unmapped    bool  // addresses without memory, in an expandable segment
	freeSince   int64 // the caller's clock when the chunk became free

	// Requested is the requested bytes of the present allocation or, in a free chunk, of an earlier
	// one.
	Requested int64
	// Tag belongs to the caller. It stays when the chunk is freed, and is lost when the chunk is
	// merged into another.
	Tag any

	_ [24]byte // pads to two cache lines; neighbours and walks need only the first
}

// Ptr returns the address of the first byte.
func (m *Chunk) Ptr() device.Ptr { return m.ptr }

// Size returns the chunk's bytes.
func (m *Chunk) Size() int64 { return m.size }

// Kind returns the kind of pool that the chunk belongs to.
func (m *Chunk) Kind() Kind { return m.kind }

// Segment returns the segment that contains the chunk.
func (m *Chunk) Segment() *Segment { return m.segment }

// Next returns the next chunk in the segment, or nil.
func (m *Chunk) Next() *Chunk { return m.next }

// Used reports whether the chunk is allocated.
func (m *Chunk) Used() bool { return m.used }

// Free reports whether the chunk is free memory that may be allocated.
func (m *Chunk) Free() bool { return m.mergeable() }

// Unmapped reports whether the chunk is addresses without memory.
func (m *Chunk) Unmapped() bool { return m.unmapped }

// Whole reports whether the chunk is a whole segment, which alone can be returned to the driver.
func (m *Chunk) Whole() bool { return m.prev == nil && m.next == nil }

// indexed reports whether the chunk is in an index.
func (m *Chunk) indexed() bool { return m.tree != nil }

// mergeable reports whether a freed neighbour absorbs the chunk.
func (m *Chunk) mergeable() bool { return m != nil && m.indexed() && !m.unmapped }

// absorb merges the neighbour n, which is free and not in the index, into m. n is then no longer
// part of the segment.
func (m *Chunk) absorb(n *Chunk) {
	if n == m.prev {
		m.ptr, m.prev = n.ptr, n.prev
		if m.prev != nil {
			m.prev.next = m
		} else {
			m.segment.first = m
		}
	} else {
		m.next = n.next
		if m.next != nil {
			m.next.prev = m
		}
	}
	m.size += n.size
}

// insertBefore links n into the segment before m.
func (m *Chunk) insertBefore(n *Chunk) {
	n.prev, n.next = m.prev, m
	if m.prev != nil {
		m.prev.next = n
	} else {
		m.segment.first = n
	}
	m.prev = n
}

// insertAfter links n into the segment after m.
func (m *Chunk) insertAfter(n *Chunk) {
	n.prev, n.next = m, m.next
	if m.next != nil {
		m.next.prev = n
	}
	m.next = n
}

// tree is a set of chunks, ordered by size and address. Unmapped chunks are never in a set with
// others, and are ordered by address alone. It is a treap: a search tree with the shape of random
// insertions, because each chunk has a priority that is a hash of its address, and no chunk is
// below one of a lower priority. Depths are logarithmic for every order of operations, and
// inserting and removing are a split and a join without the cases of a red-black tree. The links
// are in the chunks, so a tree needs no Go allocation.
type tree struct{ root *Chunk }
