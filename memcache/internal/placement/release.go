package placement

import "math"

// What may go back to the driver. What is chosen is taken out of the index, so that nobody gets it while the driver works.

// TakeReleasable takes out, by size, what a flush gives back of a pool and kind: whole segments, and free chunks of
// expandable segments that have a whole granule.
func (a *Arena) TakeReleasable(p *Pool, k Kind) (whole, granules []*Chunk) {
	l := a.listsFor(p)
	if l == nil {
		return nil, nil
	}
	// What is found is taken out after the walk: the index must not change during it.
	l.free[k].each(func(m *Chunk) {
		if m.segment.expandable {
			if from, to := a.WholeGranules(m); from < to {
				granules = append(granules, m)
			}
		} else if m.Whole() {
			whole = append(whole, m)
		}
	})
	takeOut(whole)
	takeOut(granules)
	return whole, granules
}

// wholeSegment reports whether the chunk is all of a segment that is not expandable. While max_split_size was larger, parts of segments may have become
// free that are as large as what is never split now.
func (m *Chunk) wholeSegment() bool { return m.Whole() && !m.segment.expandable }

func takeOut(list []*Chunk) {
	for _, m := range list {
		m.TakeOut()
	}
}

// TakeOversize takes out one free segment that is large enough for the request and for MaxSplit, or the largest ones that
// together are, and says whether that is enough (release_available_cached_blocks).
func (a *Arena) TakeOversize(w *Want) (victims []*Chunk, enough bool) {
	l := a.listsFor(w.Pool)
	if l == nil || a.rules.MaxSplit == math.MaxInt64 {
		return nil, false
	}
	// One segment that is large enough is best; else the largest ones, down to max_split_size, until they are enough. They go
	// back also if they are not, as in PyTorch.
	need := max(w.Bytes, a.rules.MaxSplit)
	x := &l.free[w.Kind]
	m := x.atLeast(need)
	if enough = m != nil && m.wholeSegment(); enough {
		victims = append(victims, m)
	} else {
		var sum int64
		for m = x.before(m); m != nil && sum < need && m.size >= a.rules.MaxSplit; m = x.before(m) {
			if m.wholeSegment() {
				victims = append(victims, m)
				sum += m.size
			}
		}
		enough = sum >= need
	}
	takeOut(victims)
	return victims, enough
}

// TakeGranules takes out, the largest first, free chunks of a pool until they have so many bytes of whole granules together,
// but not the chunk except. It also returns what is still missing.
func (a *Arena) TakeGranules(p *Pool, need int64, except *Chunk) (victims []*Chunk, missing int64) {
	l := a.listsFor(p)
	if l == nil {
		return nil, need
	}
	for k := range l.free {
		from := len(victims)
		x := &l.free[k]
		for m := x.before(nil); m != nil && need > 0; m = x.before(m) {
			if first, end := a.WholeGranules(m); m != except && first < end {
				victims = append(victims, m)
				need -= int64(end - first)
			}
		}
		takeOut(victims[from:])
	}
	return victims, need
}

// Old are the free segments that garbage collection may choose from: of the large pool, of no private one, not expandable.
func (a *Arena) Old() (list []*Chunk) {
	a.own.free[Large].each(func(m *Chunk) {
		if m.wholeSegment() {
			list = append(list, m)
		}
	})
	return list
}

// TakeOldest takes out chunks of together at least excess bytes, or all, in passes that each take those of at least the mean
// age (garbage_collect_cached_blocks). now is the clock of the ages. The candidates may be of several arenas.
func TakeOldest(candidates []*Chunk, excess, now int64) (victims []*Chunk) {
	// PyTorch's passes: the mean is of what is left, so that each pass goes down to younger ones.
	for excess > 0 && len(candidates) > 0 {
		var total int64
		for _, m := range candidates {
			total += now - m.freeSince
		}
		cut, count := float64(total)/float64(len(candidates)), len(victims)
		var younger []*Chunk
		for _, m := range candidates {
			if float64(now-m.freeSince) >= cut {
				victims = append(victims, m)
				excess -= m.size
			} else {
				younger = append(younger, m)
			}
		}
		if len(victims) == count {
			break
		}
		candidates = younger
	}
	takeOut(victims)
	return victims
}

// Largest is the size of the largest free chunk that a request could have a part of, in bytes.
func (a *Arena) Largest(w *Want) int64 {
	if l := a.listsFor(w.Pool); l != nil {
		x := &l.free[w.Kind]
		for m := x.before(nil); m != nil; m = x.before(m) {
			if !m.segment.expandable || a.rules.Expandable {
				return m.size
			}
		}
	}
	return 0
}

// FreeBytes is the sum of a pool's free chunks of a kind.
func (a *Arena) FreeBytes(p *Pool, k Kind) (sum int64) {
	if l := a.listsFor(p); l != nil {
		l.free[k].each(func(m *Chunk) { sum += m.size })
	}
	return sum
}
