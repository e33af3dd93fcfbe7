package placement

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Want is what a request asks of an arena.
type Want struct {
	Pool  *Pool // nil: the default pool
	Kind  Kind
	Bytes int64 // rounded: Rules.RoundSize
	// Requested is what the caller asked for, in bytes.
	Requested int64
}

// Inactive is a change of the free chunks that keep their segments from going back to the driver (PyTorch's
// inactive_split). What expandable segments have free can be unmapped, whatever is beside it: nothing there counts.
type Inactive struct {
	Blocks, Bytes int64
}

// Fit is what handing a chunk out for a request does.
type Fit struct {
	Split    bool  // the rest stays free
	Size     int64 // of what is handed out
	Inactive Inactive
}

// Find returns the free chunk that serves the request, or nil (get_free_block): the smallest of the pool that fits, at the
// lowest address, unless its size is not for this request. Best fit with the lowest address keeps the large free chunks
// whole for large requests; it is PyTorch's policy, and recordings of PyTorch replay to the same addresses only with it.
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
		// Expandable segments were turned off, as their memory can't be shared with other processes: none of it serves requests from then on.
		for m != nil && m.segment.expandable {
			m = x.after(m)
		}
		if m == nil {
			return nil
		}
	}
	if m.segment.expandable {
		if m = awayFromTail(x, m); !a.rules.Exact {
			return m // what is left can be split off, and given back
		}
	}
	if !a.rules.mayServe(m.size, w.Bytes) {
		return nil
	}
	return m
}

// mayServe reports whether a free chunk of size bytes, which are enough, may serve a request of bytes bytes.
func (r *Rules) mayServe(size, bytes int64) bool {
	if bytes < r.MaxSplit {
		return size < r.MaxSplit // else that would split what is to stay whole
	}
	return size < bytes+r.MaxNonSplitRounding // else that would waste too much
}

// Run is the shortest run of neighbours from m on, which is in use, that would serve the request as one free chunk: m, and what follows, as long as it is
// free or the caller says that it is about to be. What is free before m is a part of it. It returns those in use, appended to used; nil if nothing does.
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

// awayFromTail goes on from m to a chunk that has less room to grow, in an expandable segment: holes are used before the
// end, which can be given back.
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

// sizeWithTail is a chunk's size with the unmapped addresses after it, into which it can grow.
func sizeWithTail(m *Chunk) int64 {
	if m.next != nil && m.next.unmapped {
		return m.size + m.next.size
	}
	return m.size
}

// shouldSplit is PyTorch's should_split: whether what a request leaves of a free chunk becomes a chunk of its own. If not,
// the block is larger than was asked for.
func (a *Arena) shouldSplit(m *Chunk, w *Want) bool {
	if p := m.segment.lists.pool; p != nil && p.NoSplit {
		return false
	}
	// PyTorch looks at the option here, not at the segment: with it small rests are kept in either kind of segment.
	rest := m.size - w.Bytes
	if m.kind == Small || a.rules.Expandable {
		return rest >= sizes.MinBlock
	}
	return w.Bytes < a.rules.MaxSplit && rest > sizes.SmallLimit
}

// Fit says what handing out m, which Find has found or which is taken out, will do (alloc_found_block). It changes nothing.
func (a *Arena) Fit(m *Chunk, w *Want) (f Fit) {
	if a.shouldSplit(m, w) {
		return m.FitOf(w.Bytes)
	}
	return m.FitOf(m.size)
}

// FitOf returns what handing out the first bytes of m changes. It changes nothing.
func (m *Chunk) FitOf(bytes int64) (f Fit) {
	f.Split, f.Size = bytes < m.size, bytes
	// m counts as a part of a segment no more, and what is split off it does.
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

// HandOut hands out m, or its front, as Fit said. What is split off is free as of now.
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

// splitFront takes the first size bytes off m as a new chunk; m keeps the rest and enters the index.
func (a *Arena) splitFront(m *Chunk, size, now int64) *Chunk {
	front := a.newPart(m, m.ptr, size)
	m.insertBefore(front)
	m.ptr += device.Ptr(size)
	m.size -= size
	m.insertFree(now)
	return front
}
