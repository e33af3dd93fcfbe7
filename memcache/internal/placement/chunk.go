package placement

import "github.com/cistern-ml/cistern/device"

// Chunk is one piece of a segment, in use or free: PyTorch calls it a block, which is in package memcache the handle that a
// caller holds. The chunks of a segment form a list in address order that tiles it; splitting adds a chunk, merging with a
// free neighbour takes one away. (Variables of this type are called m, for memory.)
//
// The links of the free index are in the chunk, so that a set of free chunks allocates nothing.
//
// A chunk is in one of these states:
//
//	in use     used                    a caller has it
//	free       indexed, !unmapped      it is in the free index of its lists
//	unmapped   indexed, unmapped       addresses of an expandable segment without memory
//	taken out  none of these           the caller works on it: grows, returns or unmaps it
//	unused     linked by next alone    it describes no memory; see newChunk
//
// One that is taken out does not merge with a neighbour that is freed meanwhile.
type Chunk struct {
	ptr        device.Ptr
	size       int64
	segment    *Segment
	prev, next *Chunk // neighbours in the segment

	tree        *tree  // that it is in; nil: it is in no index
	left, right *Chunk // the links of the tree
	priority    uint32
	kind        Kind
	used        bool
	unmapped    bool  // addresses without memory, in an expandable segment
	freeSince   int64 // the caller's clock when the chunk became free

	// Requested is what was asked for, in bytes, by the present or, in a free chunk, by an earlier hand-out.
	Requested int64
	// Tag is the caller's. It stays when the chunk is freed, and goes when it is merged into another.
	Tag any

	_ [24]byte // two cache lines, of which neighbours and walks need the first
}

// Ptr is the address of the first byte.
func (m *Chunk) Ptr() device.Ptr { return m.ptr }

// Size is the chunk's bytes.
func (m *Chunk) Size() int64 { return m.size }

// Kind is the kind of pool that the chunk belongs to.
func (m *Chunk) Kind() Kind { return m.kind }

// Segment is what the chunk is a part of.
func (m *Chunk) Segment() *Segment { return m.segment }

// Next is the next chunk in the segment, or nil.
func (m *Chunk) Next() *Chunk { return m.next }

// Used reports whether the chunk was handed out, and not freed.
func (m *Chunk) Used() bool { return m.used }

// Free reports whether the chunk is free memory that may be handed out.
func (m *Chunk) Free() bool { return m.mergeable() }

// Unmapped reports whether it is addresses without memory.
func (m *Chunk) Unmapped() bool { return m.unmapped }

// Whole reports whether the chunk is a whole segment: only such a one can go back to the driver.
func (m *Chunk) Whole() bool { return m.prev == nil && m.next == nil }

// indexed reports whether the chunk is in an index.
func (m *Chunk) indexed() bool { return m.tree != nil }

// mergeable reports whether a freed neighbour absorbs the chunk.
func (m *Chunk) mergeable() bool { return m != nil && m.indexed() && !m.unmapped }

// absorb takes in the neighbour n, which is free and not in the index. n is no longer part of the segment.
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

// tree is a set of chunks, ordered by size and address; of unmapped chunks, which are in no set with others, by address alone.
// It is a treap: a search tree whose shape is that of random insertions, since each chunk has a priority that is a hash of its address and no chunk is below one of a
// lower priority. Depths are logarithmic for every order of operations, and inserting and removing are a split and a join
// without the cases of a red-black tree. The links are in the chunks, so that a tree allocates nothing.
type tree struct{ root *Chunk }
