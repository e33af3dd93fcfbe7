package placement

import (
	"cmp"
	"slices"
)

// Selection of memory to return to the driver where a part is enough.

// Releasable is a free chunk that can be returned to the driver.
type Releasable struct {
	Chunk *Chunk
	Bytes int64 // returnable bytes: for a chunk of an expandable segment its whole granules
}

// Releasable returns the chunks that TakeReleasable would take out.
func (a *Arena) Releasable(p *Pool, k Kind) (list []Releasable) {
	l := a.listsFor(p)
	if l == nil {
		return nil
	}
	l.free[k].each(func(m *Chunk) {
		if n := a.ReleasableBytes(m); n > 0 {
			list = append(list, Releasable{m, n})
		}
	})
	return list
}

// ReleasableBytes returns how many bytes of a free chunk can be returned to the driver: a whole
// segment, or the whole granules in an expandable one.
func (a *Arena) ReleasableBytes(m *Chunk) int64 {
	switch {
	case m.segment.expandable:
		from, to := a.WholeGranules(m)
		return max(int64(to-from), 0)
	case m.Whole():
		return m.size
	}
	return 0
}

// TakeExcess takes out chunks with at least excess bytes in total, or all candidates. It takes the
// oldest first, and of one age the smallest that is enough or otherwise the largest, so that they
// are few and exceed little. It also returns the bytes that are still missing. The candidates,
// whose order it changes, may be from several arenas.
func TakeExcess(candidates []Releasable, excess int64) (victims []*Chunk, missing int64) {
	slices.SortFunc(candidates, func(a, b Releasable) int {
		return cmp.Or(cmp.Compare(a.Chunk.freeSince, b.Chunk.freeSince), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Chunk.ptr, b.Chunk.ptr))
	})
	for excess > 0 && len(candidates) > 0 {
		n := 1
		for n < len(candidates) && candidates[n].Chunk.freeSince == candidates[0].Chunk.freeSince {
			n++
		}
		sameAge := candidates[:n]
		candidates = candidates[n:]
		for excess > 0 && len(sameAge) > 0 {
			i, _ := slices.BinarySearchFunc(sameAge, excess, func(r Releasable, need int64) int { return cmp.Compare(r.Bytes, need) })
			i = min(i, len(sameAge)-1)
			victims = append(victims, sameAge[i].Chunk)
			excess -= sameAge[i].Bytes
			sameAge = sameAge[:i] // after one that was enough the loop ends
		}
	}
	takeOut(victims)
	return victims, max(excess, 0)
}
