package placement

import "github.com/cistern-ml/cistern/device"

// Expandable segments (PyTorch's expandable_segments): one long range of addresses for each kind
// and pool, into which memory is mapped where a request needs more. Chunks tile a range as they
// tile every segment. Chunks without memory are marked unmapped and are in a set of their own, by
// address. While the caller calls the driver to grow or shrink one part, chunks in other parts are
// allocated, freed and merged, so the neighbours are checked again each time.

// Reserve adds a range of addresses without memory.
func (a *Arena) Reserve(p device.Ptr, bytes int64, k Kind, pool *Pool) *Chunk {
	m := a.NewSegment(p, bytes, k, pool)
	m.segment.expandable, m.unmapped, m.segment.granule = true, true, a.rules.GranuleSize(k)
	m.segment.unmapped.insert(m)
	return m
}

// Growable returns the first chunk, by address, from which on contiguous free and unmapped chunks
// are large enough for the request: an unmapped one, or the free one before it; nil if there is
// none.
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

// Missing returns what the chunk m, which is unmapped or taken out, lacks to serve the request:
// memory for bytes bytes at the front of the unmapped chunk tail. 0 bytes means that m is large
// enough. A nil tail with bytes left means that the chunk after m was allocated meanwhile. Missing
// merges a free chunk after m into m, and returns the number of merged chunks.
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

// Map gives memory to the first bytes bytes of an unmapped chunk, which becomes a chunk that is
// taken out. The rest stays unmapped.
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

// Grown merges the growing chunk m with the tail that was mapped for it. It returns the result,
// which is taken out, and the number of merged chunks.
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

// WholeGranules returns the range of the granules that lie inside m, which can be unmapped while
// its neighbours are in use. from >= to means none, as for segments that are not expandable.
func (a *Arena) WholeGranules(m *Chunk) (from, to device.Ptr) {
	if !m.segment.expandable {
		return 0, 0
	}
	granule, base := device.Ptr(m.segment.granule), m.segment.ptr
	from = base + (m.ptr-base+granule-1)/granule*granule
	to = base + (m.ptr+device.Ptr(m.size)-base)/granule*granule
	return from, to
}

// Unmap removes the memory of bytes bytes at from from the chunk m, which is taken out. The rest at
// its ends is free as of now. It returns the number of merged chunks.
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
	// Unmapped neighbours always merge, so that Growable finds the whole size. They don't count as
	// merges, because only growth had split them.
	for _, n := range [2]*Chunk{m.prev, m.next} {
		if n != nil && n.unmapped {
			a.absorb(m, n)
		}
	}
	m.segment.unmapped.insert(m)
	return merged
}

// RemoveEmpty removes the ranges without memory, and returns them: those that had memory before,
// with fresh also the others.
func (a *Arena) RemoveEmpty(fresh bool) (empty []*Segment) {
	// Nothing is mapped if one unmapped chunk is the whole segment.
	for _, seg := range a.segments {
		if m := seg.first; m.unmapped && m.Whole() && (fresh || seg.everMapped) {
			empty = append(empty, seg)
			a.Remove(seg)
		}
	}
	return empty
}
