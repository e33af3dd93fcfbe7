package report

import (
	"cmp"
	"slices"
)

// Non-releasable memory is PyTorch's inactive_split_bytes: the free bytes of segments in which a
// block is in use or waits for a stream. They return to the driver only with the whole segment.
// Expandable segments have none, as in PyTorch's figure, because their free pages can be unmapped.

// segments are the ranges that contain blocks, without those of expandable segments.
type segments struct {
	of   []int32      // of each block: its range, -1: none
	kept []keptChange // of the bytes of ranges that contain a block
}

// keptChange is the change of these bytes at a moment.
type keptChange struct {
	at int32
	by int64
}

// addSegments finds the segment of each block, and the moments from which and until which blocks
// keep segments from being released.
func (a *account) addSegments() {
	n := a.moments()
	s := &a.segments
	s.of = make([]int32, len(a.blocks))
	done := slices.Repeat([]int32{-1}, int(n)) // the block that ends at a moment; -1: none
	for i := range a.blocks {
		if end := a.blocks[i].done; end < n {
			done[end] = int32(i)
		}
	}
	starts := make([]int32, len(a.ranges)) // by their beginnings; a.ranges is ordered by end
	for i := range starts {
		starts[i] = int32(i)
	}
	slices.SortFunc(starts, func(x, y int32) int { return cmp.Compare(a.ranges[x].from, a.ranges[y].from) })
	var open sorted[int32]
	live := make([]int32, len(a.ranges)) // blocks
	place := func(i int, at int32) {
		b := &a.blocks[i]
		s.of[i] = -1
		r, ok := open.before(b.addr + 1)
		if !ok || a.ranges[r].mapped || b.addr+uint64(b.size) > a.ranges[r].end() || b.done > a.ranges[r].to {
			return
		}
		s.of[i] = r
		if live[r]++; live[r] == 1 {
			s.kept = append(s.kept, keptChange{at, a.ranges[r].size})
		}
	}
	started, ended, block := 0, 0, 0
	for at := int32(-1); at < n; at++ {
		if at >= 0 && done[at] >= 0 {
			if r := s.of[done[at]]; r >= 0 {
				if live[r]--; live[r] == 0 {
					s.kept = append(s.kept, keptChange{at, -a.ranges[r].size})
				}
			}
		}
		for ; ended < len(a.ranges) && a.ranges[ended].to <= at; ended++ {
			open.remove(a.ranges[ended].addr)
		}
		for ; started < len(starts) && a.ranges[starts[started]].from <= at; started++ {
			open.set(a.ranges[starts[started]].addr, starts[started])
		}
		if at < 0 {
			for i := range a.blocks {
				if a.blocks[i].alloc < 0 {
					place(i, at)
				}
			}
			continue
		}
		for ; block < len(a.blocks) && a.blocks[block].alloc <= at; block++ {
			if a.blocks[block].alloc == at {
				place(block, at)
			}
		}
	}
}

// nonReleasable returns the curve of the non-releasable bytes.
func (a *account) nonReleasable() ([]int64, error) {
	c, err := a.curve(func(delta func(int32, int64)) {
		for _, k := range a.segments.kept {
			delta(k.at, k.by)
		}
		for i := range a.blocks {
			if b := &a.blocks[i]; a.segments.of[i] >= 0 {
				delta(b.alloc, -b.size)
				delta(b.done, b.size)
			}
		}
	})
	for i := range c {
		// Entries that contradict each other leave blocks that overlap.
		c[i] = max(c[i], 0)
	}
	return c, err
}
