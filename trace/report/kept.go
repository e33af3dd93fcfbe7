package report

import (
	"cmp"
	"slices"
)

// kept is what blocks of one owner hold at the end, which were never freed. Parameters are there for good; what grows by
// every step is a leak.
type kept struct {
	owner       int32
	bytes       int64
	blocks      int64
	first, last int64 // the steps that the oldest and the youngest were handed out in; 0: none
	steps       int64 // how many steps left blocks
	before      int64 // blocks from outside of steps
	grows       bool
}

// growing is from how many steps on what they left is taken to grow. Fewer are what a step keeps for the next.
const growing = 3

// addKept finds what was never freed.
func (a *account) addKept() {
	at := make(map[int32]int)
	seen := make(map[[2]int64]bool)
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.free < a.moments() {
			continue
		}
		j, ok := at[b.owner]
		if !ok {
			j = len(a.sites)
			at[b.owner], a.sites = j, append(a.sites, kept{owner: b.owner})
		}
		k := &a.sites[j]
		k.blocks++
		k.bytes += b.size
		step := a.stepOf(b)
		if step == 0 {
			k.before++
			continue
		}
		if k.first == 0 || step < k.first {
			k.first = step
		}
		k.last = max(k.last, step)
		if key := [2]int64{int64(b.owner), step}; !seen[key] {
			seen[key] = true
			k.steps++
		}
	}
	for i := range a.sites {
		a.sites[i].grows = a.sites[i].steps >= growing
	}
	slices.SortFunc(a.sites, func(x, y kept) int {
		if x.grows != y.grows {
			if x.grows {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.owner, y.owner))
	})
}

// stepOf is the step that a block was handed out in: that of its label, or else the one that was open.
func (a *account) stepOf(b *block) int64 {
	if b.step != 0 || b.alloc < 0 {
		return b.step
	}
	i, _ := slices.BinarySearchFunc(a.steps, b.alloc, func(s stepAccount, at int32) int { return cmp.Compare(s.to, at+1) })
	if i < len(a.steps) && a.steps[i].from <= b.alloc {
		return a.steps[i].step
	}
	return 0
}
