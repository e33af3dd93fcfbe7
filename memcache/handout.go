package memcache

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// handout is what the cache knows of a block that a caller has, or that is pending: freed, and waiting for recorded streams.
// Its chunk, which is in use meanwhile, names it as its Tag; afterwards the Tag is the label alone.
//
// It is guarded by the lock of its shard, except fields with another comment. A Block keeps a
// pointer to its handout and the serial number. One that is over is kept for the next request of
// the shard, and is never given to another: so a Block that was freed long ago may look at it
// safely, finds another serial number there, and says that it was freed. That costs no table of
// live blocks, no reference count and no allocation by Go on a hit.
//
// A pending handout belongs to nobody but its events: whoever has seen the last one complete may look at it without a lock.
type handout struct {
	serial     uint64 // 0 if no caller has the block
	lastSerial uint64 // of a pending one
	chunk      *placement.Chunk
	shard      *shard // never changes
	label      *Label
	born       uint64 // the shard's epoch at the hand-out: see peakLog
	scope      *Scope // the innermost one that the block was charged to, or nil
	task       *task  // on whose behalf it was allocated, or nil

	// Guarded by the lock of the pending frees: the events that are not complete, and whether more are being recorded.
	eventsLeft int32
	recording  bool

	pending bool
	lent    bool // to a request of another stream, which is the first of uses and stays there

	// uses are the streams recorded since the hand-out. After the free the goroutine that records the events
	// reads them, and changes them under the lock of the pending frees.
	uses []device.Stream
	// inside are the IDs of those that were recorded while a pool was entered, with Exact.
	inside []uint64
	// marks are what was captured on its streams when it was freed in a capture, with GraphCaptureRecordStreamReuse.
	marks []device.CaptureMark
	stack []uintptr // with the history's stacks

	scopesEndedBefore uint64 // the number of scopes that had ended when the block was charged

	next *handout // the next one that is unused, or whose last event is complete
}

// user is the ID of the stream that the block was allocated on.
func (h *handout) user() uint64 {
	if h.lent {
		return h.uses[0].ID()
	}
	return h.shard.id
}

// forgetUses empties uses. The slice stays, so that the next hand-out records without allocating; it is
// cleared, so that it keeps no stream alive.
func (h *handout) forgetUses() {
	clear(h.uses)
	h.uses = h.uses[:0]
}

// handoutOf returns the handout of a chunk that is in use or waits for streams; else nil.
func handoutOf(m *placement.Chunk) *handout {
	h, _ := m.Tag.(*handout)
	return h
}

// labelOf is the label of a chunk's present or earlier hand-out.
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

// checkLive says why b is not in use, if it is not. s.mu, of the shard that handed it out, is held.
func (s *shard) checkLive(b *Block) error {
	if s.retired { // and not locked by Close
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

// noteFree notes the block, which is about to be freed, if it was part of a peak. s.mu is held.
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
