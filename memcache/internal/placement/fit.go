package placement

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Want describes the requirements of a request.
type Want struct {
	Pool  *Pool // nil: the default pool
	Kind  Kind
	Bytes int64 // rounded: Rules.RoundSize
	// Requested is the requested bytes before rounding.
	Requested int64
}

// Inactive is a change of the free chunks that keep their segments from being returned to the
// driver (PyTorch's inactive_split). Free chunks of expandable segments don't count, because they
// can be unmapped independently of their neighbours.
type Inactive struct {
	Blocks, Bytes int64
}

// Fit is the effect of allocating a chunk for a request.
type Fit struct {
	Split    bool  // the rest stays free
	Size     int64 // bytes of the allocated chunk
	Inactive Inactive
}

// Find returns the free chunk that serves the request, or nil (get_free_block): the smallest of the
// pool that fits, at the lowest address, unless its size excludes the request. Best fit at the
// lowest address keeps the large free chunks whole for large requests. It is PyTorch's policy, so
// recordings of PyTorch replay to the same addresses only with it.
func (a *Arena) Find(w *Want) *Chunk {
	l := a.listsFor(w.Pool)
	if l == nil {
		return nil
	}
	x := &l.free[w.Kind]
	m := x.atLeast(w.Bytes)
	if m == nil {
		return nil
	}
	if m.segment.expandable && !a.rules.Expandable {
		// Expandable segments were turned off, because their memory can't be shared with other
		// processes. From then on it serves no requests.
		for m != nil && m.segment.expandable {
			m = x.after(m)
		}
		if m == nil {
			return nil
		}
	}
	if m.segment.expandable {
		if m = awayFromTail(x, m); !a.rules.Exact {
			return m // the rest can be split off, and returned
		}
	}
	if !a.rules.mayServe(m.size, w.Bytes) {
		return nil
	}
	return m
}

// mayServe reports whether a free chunk of size bytes, which is large enough, may serve a request
// of bytes bytes.
func (r *Rules) mayServe(size, bytes int64) bool {
	if bytes < r.MaxSplit {
		return size < r.MaxSplit // otherwise a chunk that must stay whole would be split
	}
	return size < bytes+r.MaxNonSplitRounding // otherwise too much would be wasted
}

// Run returns the shortest run of neighbours, starting with m, that would serve the request as one
// free chunk. m is in use. Each chunk of the run is free, or about to be freed according to about.
// A free chunk before m counts as part of the run. Run appends the run's chunks in use to used and
// returns them; nil if no run serves the request.
func (m *Chunk) Run(w *Want, r *Rules, about func(*Chunk) bool, used []*Chunk) []*Chunk {
	if m.kind != w.Kind || m.segment.lists.pool != w.Pool {
		return nil
	}
	size := int64(0)
	if m.prev.mergeable() {
		size = m.prev.size
	}
	behind := m
	for ; size < w.Bytes; behind = behind.next {
		if behind == nil || !behind.mergeable() && !about(behind) {
			return nil
		}
		if size += behind.size; !behind.mergeable() {
			used = append(used, behind)
		}
	}
	if m.segment.expandable && r.Expandable || !m.segment.expandable && r.mayServe(size, w.Bytes) {
		return used
	}
	return nil
}

// awayFromTail returns m or, in expandable segments, a chunk after it that has less space to grow,
// so that holes are used before the end, which can be returned.
func awayFromTail(x *index, m *Chunk) *Chunk {
	for m.segment.expandable {
		next := x.after(m)
		if next == nil || sizeWithTail(next) >= sizeWithTail(m) {
			break
		}
		m = next
	}
	return m
}

// sizeWithTail returns a chunk's size with the unmapped addresses after it, into which it can grow.
func sizeWithTail(m *Chunk) int64 {
	if m.next != nil && m.next.unmapped {
		return m.size + m.next.size
	}
	return m.size
}

// shouldSplit is PyTorch's should_split: it reports whether the rest of a free chunk becomes a
// chunk of its own. If not, the block is larger than the request.
func (a *Arena) shouldSplit(m *Chunk, w *Want) bool {
	if p := m.segment.lists.pool; p != nil && p.NoSplit {
		return false
	}
	// PyTorch checks the option here, not the segment: with it small rests are kept in both kinds
	// of segment.
	rest := m.size - w.Bytes
	if m.kind == Small || a.rules.Expandable {
		return rest >= sizes.MinBlock
	}
	return w.Bytes < a.rules.MaxSplit && rest > sizes.SmallLimit
}

// Fit returns the effect of allocating m, which Find has returned or which is taken out
// (alloc_found_block). It changes nothing.
func (a *Arena) Fit(m *Chunk, w *Want) (f Fit) {
	if a.shouldSplit(m, w) {
		return m.FitOf(w.Bytes)
	}
	return m.FitOf(m.size)
}

// FitOf returns the effect of allocating the first bytes bytes of m. It changes nothing.
func (m *Chunk) FitOf(bytes int64) (f Fit) {
	f.Split, f.Size = bytes < m.size, bytes
	// m no longer counts as a part of a segment, and the rest that is split off does.
	part := !m.Whole()
	switch {
	case m.segment.expandable:
	case f.Split && part:
		f.Inactive.Bytes = -f.Size
	case f.Split:
		f.Inactive = Inactive{1, m.size - f.Size}
	case part:
		f.Inactive = Inactive{-1, -f.Size}
	}
	return f
}

// HandOut allocates m, or its front, as f describes. The rest is free as of now.
func (a *Arena) HandOut(m *Chunk, w *Want, f *Fit, now int64) *Chunk {
	if m.indexed() {
		m.segment.free.remove(m)
	}
	if f.Split {
		m = a.splitFront(m, f.Size, now)
	}
	m.used, m.Requested = true, w.Requested
	return m
}

// splitFront splits the first size bytes off m as a new chunk; m keeps the rest and enters the
// index.
func (a *Arena) splitFront(m *Chunk, size, now int64) *Chunk {
	front := a.newPart(m, m.ptr, size)
	m.insertBefore(front)
	m.ptr += device.Ptr(size)
	m.size -= size
	m.insertFree(now)
	return front
}
