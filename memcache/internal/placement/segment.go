package placement

import "github.com/cistern-ml/cistern/device"

// Segment is memory from the driver or, if it is expandable, a range of addresses that memory is mapped into. It belongs to
// the arena that has it.
type Segment struct {
	ptr        device.Ptr
	bytes      int64
	first      *Chunk // the chunk at ptr
	kind       Kind   // of its chunks
	expandable bool
	everMapped bool   // expandable, and has had memory
	granule    int64  // bytes that it grows and shrinks by, if it is expandable: the rules may change
	stream     uint64 // whose it is, or whose it was before an arena of orphans took it
	lists      *lists // where its free chunks belong, in the arena

	// Of lists, for the segment's kind: a free looks nothing up.
	free     *index
	unmapped *tree
}

// Ptr is the address of the first byte.
func (seg *Segment) Ptr() device.Ptr { return seg.ptr }

// Bytes is its size, or that of the range of addresses.
func (seg *Segment) Bytes() int64 { return seg.bytes }

// First is the chunk at the segment's start.
func (seg *Segment) First() *Chunk { return seg.first }

// Kind is the kind of pool that its chunks belong to.
func (seg *Segment) Kind() Kind { return seg.kind }

// Expandable reports whether it is a range of addresses.
func (seg *Segment) Expandable() bool { return seg.expandable }

// Granule is the unit in which an expandable segment grows and shrinks, in bytes; 0 of another.
func (seg *Segment) Granule() int64 { return seg.granule }

// Stream is the ID of the stream that the segment's memory was asked for.
func (seg *Segment) Stream() uint64 { return seg.stream }

// Pool is the private pool that the segment belongs to; nil: the default pool.
func (seg *Segment) Pool() *Pool { return seg.lists.pool }

// allFree reports whether nothing of it is in use or taken out.
func (seg *Segment) allFree() bool {
	for m := seg.first; m != nil; m = m.next {
		if !m.indexed() {
			return false
		}
	}
	return true
}

// setFor returns the set that a chunk which is not in use belongs to.
func (seg *Segment) setFor(m *Chunk) interface {
	insert(*Chunk)
	remove(*Chunk)
} {
	if m.unmapped {
		return seg.unmapped
	}
	return seg.free
}
