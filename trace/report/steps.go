package report

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/trace"
)

// stepAccount is one row of the table of steps. Sizes are bytes, of the whole device's memory while
// the step was open.
type stepAccount struct {
	span
	start, end     int64 // allocated before it and after it
	peak           int64
	peakAt         int32
	reserved       int64   // at the peak of the allocated memory
	shares         []int64 // at the peak, by category
	allocs, frees  int64   // blocks
	allocatedBytes int64   // of all blocks allocated
	// left is the bytes of the step's own blocks that are in use at its end.
	left int64
	ooms int64
}

// categories is the number of shares: the cache's categories, and one for memory without a
// category.
const categories = 8

// share returns the index of a category's share.
func (a *account) share(id int32) int {
	c := a.owners.list[id].category
	if c < 0 || c >= categories-1 {
		return categories - 1
	}
	return int(c)
}

// stepSpans returns the steps of the source, or else those of its allocations' labels: a step
// begins with its first allocation, and ends where the next one begins.
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

// addSteps computes the steps' rows.
func (a *account) addSteps() {
	spans := a.stepSpans()
	if len(spans) == 0 {
		return
	}
	allocated, err1 := a.allocated()
	reserved, err2 := a.reserved()
	if err1 != nil || err2 != nil {
		return // findPeak has returned the error
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
	a.openSteps()
	for i := range a.steps {
		if p := a.steps[i].late; p != nil {
			a.steps[i].know(p)
		}
	}
}

// unknown is the value of an unknown figure.
const unknown = -1

// know sets the program's figures of a step of which the history has only the end. Figures that
// neither has become unknown.
func (r *stepAccount) know(p *trace.StepProfile) {
	if r.start == p.AllocatedStart && r.allocs == p.Allocations && r.frees == p.Frees && r.ooms == p.OutOfMemory {
		r.late = nil // nothing happened in it before the first entry
		return
	}
	r.start, r.end, r.allocs, r.frees, r.ooms = p.AllocatedStart, p.AllocatedEnd, p.Allocations, p.Frees, p.OutOfMemory
	if p.Allocations > 0 {
		r.allocatedBytes, r.left = unknown, unknown
	}
	if p.AllocatedPeak == r.peak {
		return // the peak is in the history
	}
	r.peak, r.reserved, r.shares = p.AllocatedPeak, unknown, make([]int64, categories)
	if p.Peak == nil {
		return
	}
	for _, share := range p.Peak.Categories {
		for c := range categories - 1 {
			if share.Name == categoryName(c) {
				r.shares[c] = share.Bytes
			}
		}
	}
}

// openSteps finds the open step of each moment: the innermost one, which is the last that began.
func (a *account) openSteps() {
	order := make([]int32, len(a.steps))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(x, y int32) int { return cmp.Compare(a.steps[x].from, a.steps[y].from) })
	a.open = make([]int32, a.moments())
	var stack []int32
	for m := range a.open {
		for ; len(order) > 0 && a.steps[order[0]].from <= int32(m); order = order[1:] {
			stack = append(stack, order[0])
		}
		for len(stack) > 0 && a.steps[stack[len(stack)-1]].to <= int32(m) {
			stack = stack[:len(stack)-1] // a lower one that has ended is removed when it is the top
		}
		a.open[m] = -1
		if n := len(stack); n > 0 {
			a.open[m] = stack[n-1]
		}
	}
}

// tally counts the events up to a moment.
type tally struct{ allocs, frees, ooms, bytes int64 }

// counts returns the tally up to each entry.
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

// change is bytes of a category that are allocated or freed.
type change struct {
	at    int32
	share int
	by    int64
}

// addShares finds the holders at the steps' peaks, in one pass over all blocks.
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

// addLeft computes the bytes of the steps' own blocks at their ends. Steps may overlap, and a block
// counts in each step that was open at its allocation. The steps are visited from the last end to
// the first, with prefix sums over the allocation moments of the blocks that are held then.
func (a *account) addLeft() {
	byFree := make([]*block, 0, len(a.blocks))
	for i := range a.blocks {
		if a.blocks[i].alloc >= 0 {
			byFree = append(byFree, &a.blocks[i])
		}
	}
	slices.SortFunc(byFree, func(x, y *block) int { return cmp.Compare(y.free, x.free) })
	order := make([]*stepAccount, len(a.steps))
	for i := range a.steps {
		order[i] = &a.steps[i]
	}
	slices.SortFunc(order, func(x, y *stepAccount) int { return cmp.Compare(y.to, x.to) })
	held, next := make(prefixSums, a.moments()+1), 0
	for _, row := range order {
		for ; next < len(byFree) && byFree[next].free >= row.to; next++ {
			held.add(byFree[next].alloc, byFree[next].size)
		}
		row.left = held.below(row.to) - held.below(row.from)
	}
}

// prefixSums are sums of the values below an index, in a tree in which each index has the sum of a
// stretch before it (Fenwick).
type prefixSums []int64

func (p prefixSums) add(at int32, v int64) {
	for i := int(at) + 1; i < len(p); i += i & -i {
		p[i] += v
	}
}

// below returns the sum of the values at indexes below at.
func (p prefixSums) below(at int32) (sum int64) {
	for i := int(at); i > 0; i -= i & -i {
		sum += p[i]
	}
	return sum
}

// maxima finds the largest of a range of values.
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
