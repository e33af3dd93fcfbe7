package memcache

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// A chunk is one piece of a segment, in use or free: PyTorch calls it a block, which is here the handle that a caller
// holds. The chunks of a segment form a list in address order that tiles it; splitting adds a chunk, merging with a free
// neighbour takes one away. (Variables of this type are called m, for memory: c is the cache.)
//
// A chunk is guarded by the lock of the shard that it names, but for the fields that say otherwise. A Block keeps a pointer
// to its chunk and the serial number of its hand-out. A chunk that describes nothing any more is kept for the next split
// of its shard, and is never given to another cache: so a Block that was freed long ago may look at its chunk safely,
// finds another serial number there, and says that it was freed. That costs no table of live blocks, no reference count
// and no allocation by Go on a hit.
//
// The links of the free index are in the chunk as well, so that a set of free chunks allocates nothing.
//
// A chunk is in one of these states:
//
//	in use     serial != 0             a caller has it
//	pending    pending                 it was freed, and events of other streams are waited for
//	free       indexed, !unmapped      it is in the free index of its lists
//	unmapped   indexed, unmapped       addresses of an expandable segment without memory
//	taken out  none of these           the holder of the growth lock works on it: grows, returns or unmaps it
//	unused     linked by next alone    it describes no memory; see newChunk
//
// A pending chunk belongs to nobody but its events, one that is taken out to the goroutine with the growth lock: both may
// be looked at without the shard's lock there, and neither merges with a neighbour that is freed meanwhile.
type chunk struct {
	// What every hit touches comes first, in two cache lines.

	// shard is the owner. It changes when the segment of a closed stream moves to another stream's shard, with all
	// shards locked: see lockOwner.
	shard atomic.Pointer[shard]
	// serial is the number of the present hand-out; 0 when the block is not handed out.
	serial uint64

	ptr        device.Ptr
	size       int64
	segment    *segment
	prev, next *chunk // neighbours in the segment

	left, right       *chunk // the links of the tree that it is in
	priority          uint32
	indexed           bool
	kind              poolKind
	unmapped          bool   // addresses without memory, in an expandable segment
	pending           bool   // freed, and waiting for a recorded stream
	requested         int64  // of the present or, in a free block, of an earlier hand-out
	freeSince         int64  // the pool's clock when the block became free
	scopesEndedBefore uint64 // the number of scopes that had ended when the block was charged

	label *Label // of the hand-out
	born  uint64 // the shard's epoch at the hand-out: see peakLog

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

// lockOwner locks the shard that owns the chunk, and returns it. The owner may change while its lock is waited for: then
// the new one is tried.
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

// isSegment reports whether the chunk is a whole segment: only such a one can go back to the driver.
func (m *chunk) isSegment() bool { return m.prev == nil && m.next == nil }

// mergeable reports whether a freed neighbour absorbs the block.
func (m *chunk) mergeable() bool { return m != nil && m.indexed && !m.unmapped }

// absorb takes in the neighbour n, which is free and not in the index. n is no longer part of the segment.
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

// newChunk returns an unused chunk, which the caller links into a segment. s.mu is held.
func (s *shard) newChunk() *chunk {
	if s.unusedChunks == nil {
		// Several at a time, so that chunks of two shards share no cache line.
		fresh := make([]chunk, 16)
		for i := range fresh {
			fresh[i].shard.Store(s)
			s.recycle(&fresh[i])
		}
	}
	m := s.unusedChunks
	s.unusedChunks = m.next
	m.requested, m.next, m.prev, m.scope, m.label = 0, nil, nil, nil, nil
	m.unmapped, m.freeSince = false, 0
	return m
}

// recycle keeps a chunk that describes no memory any more. Its serial number is cleared, so that Blocks that still point
// to it are recognised as freed. s.mu is held.
func (s *shard) recycle(m *chunk) {
	m.serial = 0
	m.next = s.unusedChunks
	s.unusedChunks = m
}

// newPart returns a chunk for a part of m's memory; the caller links it in and takes that part off m. s.mu is held.
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
