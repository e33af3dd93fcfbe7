package placement

import "github.com/cistern-ml/cistern/device"

// Expandable segments (PyTorch's expandable_segments): one long range of addresses for each kind and pool, into which memory
// is mapped where a request needs more. A range is tiled by chunks like every segment; those without memory are marked
// unmapped and are in a set of their own, by address. Chunks with memory are handed out, freed and merged while the caller
// is in the driver to grow or shrink another part: so the neighbours are looked at again each time.

// Reserve adds a range of addresses, which has no memory yet.
func (a *Arena) Reserve(p device.Ptr, bytes int64, k Kind, pool *Pool) *Chunk {
	m := a.NewSegment(p, bytes, k, pool)
	m.segment.expandable, m.unmapped, m.segment.granule = true, true, a.rules.GranuleSize(k)
	m.segment.unmapped.insert(m)
	return m
}

// Growable returns the first chunk, by address, from which on free and unmapped neighbours have room for the request: an
// unmapped one, or the free one before it; nil if there is none.
func (a *Arena) Growable(w *Want) *Chunk {
	l := a.listsFor(w.Pool)
	if l == nil {
		return nil
	}
	x := &l.unmapped[w.Kind]
	for m := x.atLeast(0); m != nil; m = x.after(m) {
		first := m
		if m.prev.mergeable() {
			first = m.prev
		}
		var sum int64
		for n := first; n != nil && n.indexed() && sum < w.Bytes; n = n.next {
			sum += n.size
		}
		if sum >= w.Bytes {
			return first
		}
	}
	return nil
}

// Missing says what the chunk m, which is unmapped or taken out, lacks to serve the request: memory for so many bytes at the
// front of the unmapped chunk tail. With 0 bytes m is large enough; a nil tail says that what was behind m was handed out.
// It also returns how many chunks merged: what was freed behind m is m's now.
func (a *Arena) Missing(m *Chunk, w *Want) (tail *Chunk, bytes, merged int64) {
	if m.unmapped {
		return m, min(m.size, w.Bytes), 0
	}
	if m.next.mergeable() {
		a.absorb(m, m.next)
		merged++
	}
	if m.size >= w.Bytes {
		return nil, 0, merged
	}
	tail, bytes = m.next, w.Bytes-m.size
	if tail == nil || !tail.unmapped {
		return nil, bytes, merged
	}
	return tail, min(tail.size, bytes), merged
}

// Map gives the first bytes of an unmapped chunk memory: they are a chunk that is taken out. What is left stays unmapped.
func (a *Arena) Map(m *Chunk, bytes int64) {
	seg := m.segment
	seg.unmapped.remove(m)
	if rest := m.size - bytes; rest > 0 {
		n := a.newPart(m, m.ptr+device.Ptr(bytes), rest)
		n.unmapped = true
		m.insertAfter(n)
		m.size = bytes
		seg.unmapped.insert(n)
	}
	m.unmapped, seg.everMapped = false, true
}

// Grown puts the chunk m that grows and the tail that was mapped for it together, and returns that, which is taken out, and
// how many chunks merged.
func (a *Arena) Grown(m, tail *Chunk) (grown *Chunk, merged int64) {
	if m != tail {
		tail.absorb(m) // m is before it, and in no set
		a.recycle(m)
	} else if m.prev.mergeable() {
		a.absorb(m, m.prev)
		merged++
	}
	return tail, merged
}

// WholeGranules are the granules that lie inside m: those that can be unmapped while its neighbours are in use. from >= to: none, as in
// segments that are not expandable.
func (a *Arena) WholeGranules(m *Chunk) (from, to device.Ptr) {
	if !m.segment.expandable {
		return 0, 0
	}
	granule, base := device.Ptr(m.segment.granule), m.segment.ptr
	from = base + (m.ptr-base+granule-1)/granule*granule
	to = base + (m.ptr+device.Ptr(m.size)-base)/granule*granule
	return from, to
}

// Unmap takes the memory from on, of so many bytes, from the chunk m, which is taken out. What is left at its ends is free as
// of now. It returns how many chunks merged.
func (a *Arena) Unmap(m *Chunk, from device.Ptr, bytes, now int64) (merged int64) {
	to := from + device.Ptr(bytes)
	if front := int64(from - m.ptr); front > 0 {
		n := a.newPart(m, m.ptr, front)
		m.insertBefore(n)
		merged += a.Free(n, now)
	}
	if back := int64(m.ptr + device.Ptr(m.size) - to); back > 0 {
		n := a.newPart(m, to, back)
		m.insertAfter(n)
		merged += a.Free(n, now)
	}
	m.ptr, m.size, m.unmapped = from, bytes, true
	// Unmapped neighbours are one chunk always, so that Growable sees all the room there is. They are no merges: only growth
	// parted them.
	for _, n := range [2]*Chunk{m.prev, m.next} {
		if n != nil && n.unmapped {
			a.absorb(m, n)
		}
	}
	m.segment.unmapped.insert(m)
	return merged
}

// RemoveEmpty forgets the ranges that have no memory any more, and returns them; with fresh also those that never had any.
func (a *Arena) RemoveEmpty(fresh bool) (empty []*Segment) {
	// One unmapped chunk from end to end: nothing is mapped.
	for _, seg := range a.segments {
		if m := seg.first; m.unmapped && m.Whole() && (fresh || seg.everMapped) {
			empty = append(empty, seg)
			a.Remove(seg)
		}
	}
	return empty
}
