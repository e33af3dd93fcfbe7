package memcache

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// meta is the allocator's own record of a block. The metas of one segment form a list in address order
// that tiles it. It is guarded by the lock of its shard, but for the fields that say otherwise. Metas are
// recycled, never returned to another cache, so a stale Block may look at one safely.
type chunk struct {
	// What every hit touches comes first, in two cache lines.

	// shard is the owner. It changes when a closed stream's segment passes to another stream, with all
	// shards locked.
	shard atomic.Pointer[shard]
	// serial is the number of the present hand-out; 0 when the block is not handed out.
	serial uint64

	ptr        device.Ptr
	size       int64
	segment    *segment
	prev, next *chunk // neighbours in the segment

	left, right       *chunk // the index's links
	priority          uint32
	indexed           bool
	kind              poolKind
	unmapped          bool   // addresses without memory, in an expandable segment
	pending           bool   // freed, and waiting for a recorded stream
	requested         int64  // of the present or, in a free block, of an earlier hand-out
	freeSince         int64  // the pool's clock when the block became free
	scopesEndedBefore uint64 // the number of scopes that had ended when the block was charged

	// uses are the streams recorded since the hand-out. After the free they belong to the goroutine that
	// records the events.
	uses []device.Stream

	// Guarded by the lock of the pending frees: the events that are not complete, and whether more are
	// being recorded.
	eventsLeft int
	recording  bool
	nextDone   *chunk // the next one whose last event is complete

	scope      *Scope    // the innermost one that the block was charged to, or nil
	stack      []uintptr // of the hand-out, with the history's stacks
	lastSerial uint64    // the serial of the last hand-out
}

// lock locks the owner.
func (m *chunk) lockOwner() *shard {
	for {
		s := m.shard.Load()
		s.mu.Lock()
		if m.shard.Load() == s {
			return s
		}
		s.mu.Unlock()
	}
}

// whole reports whether the block is a segment of its own.
func (m *chunk) isSegment() bool { return m.prev == nil && m.next == nil }

// mergeable reports whether a freed neighbour absorbs the block.
func (m *chunk) mergeable() bool { return m != nil && m.indexed && !m.unmapped }

// absorb takes in the neighbour n, which is free and not in the index.
func (m *chunk) absorb(n *chunk) {
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

// newMeta returns an unused meta. s.mu is held.
func (s *shard) newChunk() *chunk {
	if s.unusedChunks == nil {
		// Several at a time, so that metas of two shards share no cache line.
		fresh := make([]chunk, 16)
		for i := range fresh {
			fresh[i].shard.Store(s)
			s.recycle(&fresh[i])
		}
	}
	m := s.unusedChunks
	s.unusedChunks = m.next
	m.requested, m.next, m.prev, m.scope = 0, nil, nil, nil
	m.unmapped, m.freeSince = false, 0
	return m
}

// recycle keeps a meta that describes no memory any more. s.mu is held.
func (s *shard) recycle(m *chunk) {
	m.serial = 0
	m.next = s.unusedChunks
	s.unusedChunks = m
}

// cut is a new meta in m's segment. s.mu is held.
func (s *shard) newPart(m *chunk, p device.Ptr, size int64) *chunk {
	n := s.newChunk()
	n.segment, n.ptr, n.size, n.kind = m.segment, p, size, m.kind
	return n
}

// insertBefore links n into the segment before m.
func (m *chunk) insertBefore(n *chunk) {
	n.prev, n.next = m.prev, m
	if m.prev != nil {
		m.prev.next = n
	} else {
		m.segment.first = n
	}
	m.prev = n
}

// insertAfter links n into the segment after m.
func (m *chunk) insertAfter(n *chunk) {
	n.prev, n.next = m, m.next
	if m.next != nil {
		m.next.prev = n
	}
	m.next = n
}
