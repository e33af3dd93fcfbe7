package memcache

import "github.com/cistern-ml/cistern/device"

// meta is the allocator's own record of a block. The metas of one segment form a list in address order
// that tiles it. Everything in it but cache is guarded by cache.mu. Metas are recycled, never returned to
// another cache, so a stale Block may look at one safely.
type meta struct {
	cache *Cache
	// serial is the number of the present hand-out; 0 when the block is not handed out.
	serial uint64

	ptr       device.Ptr
	size      int64
	requested int64 // of the present or, in a free block, of an earlier hand-out
	kind      poolKind
	stream    uint64

	segment    *segment
	prev, next *meta // neighbours in the segment

	// uses are the streams recorded since the hand-out; events counts the completions that are still
	// missing after the free. A block is in the index only when both are empty.
	uses   []device.Stream
	events int

	// scope is the innermost scope that the block was charged to, and charged the number of scopes.
	scope   *Scope
	charged int

	unmapped bool  // addresses without memory, in an expandable segment
	born     int64 // the pool's clock when the block became free

	// The index's links.
	left, right *meta
	priority    uint32
	indexed     bool
}

// whole reports whether the block is a segment of its own.
func (m *meta) whole() bool { return m.prev == nil && m.next == nil }

// absorb takes in the neighbour n, which is free and not in the index.
func (m *meta) absorb(n *meta) {
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
