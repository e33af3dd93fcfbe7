package memcache

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// handout is the cache's record of a block that a caller holds, or that is pending: freed, and
// waiting for recorded streams. The Tag of its chunk points to it while the chunk is in use;
// afterwards the Tag is only the label.
//
// The lock of its shard guards it, except fields with another comment. A Block contains a pointer
// to its handout and the serial number. A shard reuses its ended handouts for its next requests,
// and never passes them to another shard. So a stale Block may read its handout safely, finds
// another serial number, and returns ErrFreed. That needs no table of live blocks, no reference
// count and no Go allocation on a hit.
//
// Only the events own a pending handout: the goroutine that has seen the last event complete may
// access it without a lock.
type handout struct {
	serial     uint64 // 0 if no caller holds the block
	lastSerial uint64 // serial number of a pending block
	chunk      *placement.Chunk
	shard      *shard // never changes
	label      *Label
	born       uint64 // the shard's epoch at the allocation: see peakLog
	scope      *Scope // the innermost one that the block was charged to, or nil
	task       *task  // the task that it was allocated for, or nil

	// Guarded by the lock of the pending frees: the number of incomplete events, and whether more
	// are being recorded.
	eventsLeft int32
	recording  bool

	pending bool
	// lent to a request of another stream; that stream is uses[0] and stays there
	lent bool

	// uses are the streams recorded since the allocation. After the free the goroutine that records
	// the events reads them, and changes them under the lock of the pending frees.
	uses []device.Stream
	// inside are the IDs of the streams that were recorded while a pool was entered, with Exact.
	inside []uint64
	// marks are the positions in the captures of its streams when it was freed in a capture, with
	// GraphCaptureRecordStreamReuse.
	marks []device.CaptureMark
	stack []uintptr // with the history's stacks

	scopesEndedBefore uint64 // the number of scopes that had ended when the block was charged

	next *handout // the next one that is unused, or whose last event is complete
}

// user returns the ID of the stream that the block was allocated for: the borrower's, if it is
// lent.
func (h *handout) user() uint64 {
	if h.lent {
		return h.uses[0].ID()
	}
	return h.shard.id
}

// forgetUses empties uses. It keeps the slice, so that the next allocation records streams without
// a Go allocation, and clears it, so that it keeps no stream alive.
func (h *handout) forgetUses() {
	clear(h.uses)
	h.uses = h.uses[:0]
}

// handoutOf returns the handout of a chunk that is in use or pending, or nil.
func handoutOf(m *placement.Chunk) *handout {
	h, _ := m.Tag.(*handout)
	return h
}

// labelOf returns the label of a chunk's present or last allocation.
func labelOf(m *placement.Chunk) Label {
	if h := handoutOf(m); h != nil {
		return h.label.value()
	}
	l, _ := m.Tag.(*Label)
	return l.value()
}

// eachLive calls f for every block in use. s.mu is held.
func (s *shard) eachLive(f func(*handout)) {
	s.eachActive(func(h *handout) {
		if h.serial != 0 {
			f(h)
		}
	})
}

// eachActive calls f for every block in use or pending. s.mu is held.
func (s *shard) eachActive(f func(*handout)) {
	for seg := range s.arena.Segments() {
		for m := seg.First(); m != nil; m = m.Next() {
			if h := handoutOf(m); h != nil {
				f(h)
			}
		}
	}
}

// checkLive returns an error if b is not in use. The lock of its shard, s.mu, is held.
func (s *shard) checkLive(b *Block) error {
	if s.retired { // it was not locked by Close
		return ErrFreed
	}
	if s.shards.closed {
		return ErrClosed
	}
	if b.handout.serial != b.serial {
		return ErrFreed
	}
	return nil
}

func (h *handout) note() freedBlock {
	return freedBlock{label: h.label, stack: h.stack, serial: h.serial, ptr: h.chunk.Ptr(), pool: h.chunk.Segment().Pool(),
		size: h.chunk.Size(), requested: h.chunk.Requested}
}

// noteFree records the block, which is about to be freed, if it was part of a peak. s.mu is held.
func (s *shard) noteFree(h *handout) {
	if h.born <= s.peak.before {
		s.peak.freed = append(s.peak.freed, h.note())
	}
	for i := range s.scopes {
		if l := &s.scopes[i].peak; h.born <= l.before {
			l.freed = append(l.freed, h.note())
		}
	}
}
