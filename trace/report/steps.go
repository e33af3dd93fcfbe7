package report

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
)

// stepAccount is one row of the table of steps. Sizes are bytes, of the whole device's memory while the step was open.
type stepAccount struct {
	span
	start, end     int64 // allocated before it and after it
	peak           int64
	peakAt         int32
	reserved       int64   // at the peak of what is allocated
	shares         []int64 // at the peak, by category
	allocs, frees  int64   // blocks
	allocatedBytes int64   // of all blocks handed out
	left           int64   // of the blocks handed out in the step, what its end finds in use
	ooms           int64
}

// categories is the number of shares: the cache's categories, and what has none.
const categories = 8

// share is the index of a category's share.
func (a *account) share(id int32) int {
	c := a.owners.list[id].category
	if c < 0 || c >= categories-1 {
		return categories - 1
	}
	return int(c)
}

// stepSpans are the steps of the source, or those that the labels of its allocations tell: a step begins with its first
// allocation, and ends where the next one begins.
func (a *account) stepSpans() []span {
	if len(a.spans) > 0 {
		return a.spans
	}
	var list []span
	for i := range a.entries {
		e := &a.entries[i]
		if e.action != recording.Alloc || e.step == 0 {
			continue
		}
		if n := len(list); n == 0 || e.step > list[n-1].step {
			if n > 0 {
				list[n-1].to = int32(i)
			}
			list = append(list, span{step: e.step, from: int32(i), to: a.moments(), h2d: -1, d2h: -1, hostTime: -1, deviceTime: -1})
		}
	}
	return list
}

// addSteps works the steps' rows out.
func (a *account) addSteps() {
	spans := a.stepSpans()
	if len(spans) == 0 {
		return
	}
	allocated, err1 := a.allocated()
	reserved, err2 := a.reserved()
	if err1 != nil || err2 != nil {
		return // findPeak said so
	}
	most := newMaxima(allocated)
	counts := a.counts()
	for _, s := range spans {
		if s.from < 0 || s.from > s.to || s.to > a.moments() {
			continue
		}
		// Moment m is at index m+1: the step's moments are from-1, its start, to to-1.
		at := most.in(int(s.from), int(s.to)+1)
		row := stepAccount{span: s, start: allocated[s.from], end: allocated[s.to], peak: allocated[at], peakAt: int32(at - 1), reserved: reserved[at],
			shares: make([]int64, categories)}
		from, to := counts[s.from], counts[s.to]
		row.allocs, row.frees, row.ooms, row.allocatedBytes = to.allocs-from.allocs, to.frees-from.frees, to.ooms-from.ooms, to.bytes-from.bytes
		a.steps = append(a.steps, row)
	}
	a.addShares()
	a.addLeft()
}

// tally is what happened up to a moment.
type tally struct{ allocs, frees, ooms, bytes int64 }

// counts has the tally up to each entry.
func (a *account) counts() []tally {
	list := make([]tally, len(a.entries)+1)
	for i := range a.entries {
		t := list[i]
		switch e := &a.entries[i]; e.action {
		case recording.Alloc:
			t.allocs++
			t.bytes += a.sizeOf(e)
		case recording.OOM:
			t.ooms++
		}
		list[i+1] = t
	}
	frees := make([]int64, len(a.entries)+1)
	for _, b := range a.blocks {
		if b.free >= 0 && b.free < a.moments() {
			frees[b.free+1]++
		}
	}
	for i, sum := 0, int64(0); i < len(list); i++ {
		sum += frees[i]
		list[i].frees = sum
	}
	return list
}

// change is bytes of a category that come or go.
type change struct {
	at    int32
	share int
	by    int64
}

// addShares finds who held the steps' peaks, in one pass over all blocks.
func (a *account) addShares() {
	changes := make([]change, 0, 2*len(a.blocks))
	for _, b := range a.blocks {
		changes = append(changes, change{b.alloc, a.share(b.owner), b.size}, change{b.free, a.share(b.owner), -b.size})
	}
	slices.SortFunc(changes, func(x, y change) int { return cmp.Compare(x.at, y.at) })
	order := make([]*stepAccount, len(a.steps))
	for i := range a.steps {
		order[i] = &a.steps[i]
	}
	slices.SortStableFunc(order, func(x, y *stepAccount) int { return cmp.Compare(x.peakAt, y.peakAt) })
	sums, next := make([]int64, categories), 0
	for _, row := range order {
		for ; next < len(changes) && changes[next].at <= row.peakAt; next++ {
			sums[changes[next].share] += changes[next].by
		}
		copy(row.shares, sums)
	}
}

// addLeft finds what the steps' own blocks hold at their ends. Steps may overlap: a block is of each that it was handed out in.
func (a *account) addLeft() {
	byAlloc := make([]int32, 0, len(a.blocks))
	for i, b := range a.blocks {
		if b.alloc >= 0 {
			byAlloc = append(byAlloc, int32(i))
		}
	}
	slices.SortFunc(byAlloc, func(x, y int32) int { return cmp.Compare(a.blocks[x].alloc, a.blocks[y].alloc) })
	for i := range a.steps {
		row := &a.steps[i]
		first, _ := slices.BinarySearchFunc(byAlloc, row.from, func(b, at int32) int { return cmp.Compare(a.blocks[b].alloc, at) })
		for _, id := range byAlloc[first:] {
			b := &a.blocks[id]
			if b.alloc >= row.to {
				break
			}
			if b.free >= row.to {
				row.left += b.size
			}
		}
	}
}

// maxima answers where the largest of a range of values is.
type maxima struct {
	values []int64
	best   []int // of each stretch, the index of the first largest value
}

const stretch = 512

func newMaxima(values []int64) *maxima {
	m := &maxima{values: values}
	for from := 0; from < len(values); from += stretch {
		m.best = append(m.best, m.scan(from, min(from+stretch, len(values))))
	}
	return m
}

// scan returns the index of the first largest value from from to to.
func (m *maxima) scan(from, to int) int {
	best := from
	for i := from; i < to; i++ {
		if m.values[i] > m.values[best] {
			best = i
		}
	}
	return best
}

// in returns the index of the first largest value from from to to, which is larger.
func (m *maxima) in(from, to int) int {
	first, last := (from+stretch-1)/stretch, to/stretch
	if first >= last {
		return m.scan(from, to)
	}
	best := m.scan(from, max(first*stretch, from+1))
	for _, at := range m.best[first:last] {
		if m.values[at] > m.values[best] || m.values[at] == m.values[best] && at < best {
			best = at
		}
	}
	if at := m.scan(min(last*stretch, to-1), to); m.values[at] > m.values[best] {
		best = at
	}
	return best
}
