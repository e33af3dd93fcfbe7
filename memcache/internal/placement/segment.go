package placement

import "github.com/cistern-ml/cistern/device"

// Segment is memory from the driver or, if it is expandable, a range of addresses that memory is
// mapped into. It belongs to one arena.
type Segment struct {
	ptr        device.Ptr
	bytes      int64
	first      *Chunk // the chunk at ptr
	kind       Kind   // the kind of its chunks
	expandable bool
	everMapped bool // expandable, and has had memory
	// granule is the number of bytes by which an expandable segment grows and shrinks. The rules
	// may change, so it is kept here.
	granule int64
	stream  uint64 // the owner's ID; in an arena of orphans that of the former owner
	lists   *lists // the lists of its free chunks, in the arena

	// The sets in lists for the segment's kind, so that a free needs no look-up.
	free     *index
	unmapped *tree
}

// Ptr returns the address of the first byte.
func (seg *Segment) Ptr() device.Ptr { return seg.ptr }

// Bytes returns the size of the segment, or of its range of addresses.
func (seg *Segment) Bytes() int64 { return seg.bytes }

// First returns the chunk at the segment's start.
func (seg *Segment) First() *Chunk { return seg.first }

// Kind returns the kind of pool that its chunks belong to.
func (seg *Segment) Kind() Kind { return seg.kind }

// Expandable reports whether the segment is a range of addresses.
func (seg *Segment) Expandable() bool { return seg.expandable }

// Granule returns the unit in which an expandable segment grows and shrinks, in bytes; 0 for
// others.
func (seg *Segment) Granule() int64 { return seg.granule }

// Stream returns the ID of the stream that the segment's memory was requested for.
func (seg *Segment) Stream() uint64 { return seg.stream }

// Pool returns the private pool that the segment belongs to; nil: the default pool.
func (seg *Segment) Pool() *Pool { return seg.lists.pool }

// allFree reports whether no chunk of the segment is in use or taken out.
func (seg *Segment) allFree() bool {
	for m := seg.first; m != nil; m = m.next {
		if !m.indexed() {
			return false
		}
	}
	return true
}

// setFor returns the set for a chunk that is not in use.
func (seg *Segment) setFor(m *Chunk) interface {
	insert(*Chunk)
	remove(*Chunk)
} {
	if m.unmapped {
		return seg.unmapped
	}
	return seg.free
}
