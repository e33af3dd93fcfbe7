package placement

import "math"

// Selection of memory to return to the driver. The selected chunks are taken out of the index, so
// that no request gets them during the driver call.

// TakeReleasable takes out, by size, the chunks of a pool and kind that a flush returns: whole
// segments, and free chunks of expandable segments that contain a whole granule.
func (a *Arena) TakeReleasable(p *Pool, k Kind) (whole, granules []*Chunk) {
	l := a.listsFor(p)
	if l == nil {
		return nil, nil
	}
	// The chunks are taken out after the walk, because the index must not change during it.
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

// wholeSegment reports whether the chunk is all of a segment that is not expandable. Chunks as
// large as max_split_size may also be parts of segments, if max_split_size was larger before.
func (m *Chunk) wholeSegment() bool { return m.Whole() && !m.segment.expandable }

func takeOut(list []*Chunk) {
	for _, m := range list {
		m.TakeOut()
	}
}

// TakeOversize takes out one free segment that is large enough for the request and for MaxSplit, or
// the largest ones that are large enough together. It reports whether they are enough
// (release_available_cached_blocks).
func (a *Arena) TakeOversize(w *Want) (victims []*Chunk, enough bool) {
	l := a.listsFor(w.Pool)
	if l == nil || a.rules.MaxSplit == math.MaxInt64 {
		return nil, false
	}
	// One segment that is large enough is best, otherwise the largest ones, down to max_split_size,
	// until they are enough. They are returned even if they are not enough, as in PyTorch.
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

// TakeGranules takes out, the largest first, free chunks of a pool except the chunk except, until
// they contain need bytes of whole granules. It also returns the bytes that are still missing.
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

// Old returns the free segments that garbage collection may choose from: of the large pool, not
// private and not expandable.
func (a *Arena) Old() (list []*Chunk) {
	a.own.free[Large].each(func(m *Chunk) {
		if m.wholeSegment() {
			list = append(list, m)
		}
	})
	return list
}

// TakeOldest takes out chunks with at least excess bytes in total, or all candidates, in passes
// that each take the chunks of at least the mean age (garbage_collect_cached_blocks). now is the
// clock of the ages. The candidates may be from several arenas.
func TakeOldest(candidates []*Chunk, excess, now int64) (victims []*Chunk) {
	// PyTorch's passes: the mean is over the remaining chunks, so that each pass takes younger
	// ones.
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

// Largest returns the size in bytes of the largest free chunk that a request could be served from.
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

// FreeBytes returns the sum of a pool's free chunks of a kind.
func (a *Arena) FreeBytes(p *Pool, k Kind) (sum int64) {
	if l := a.listsFor(p); l != nil {
		l.free[k].each(func(m *Chunk) { sum += m.size })
	}
	return sum
}
