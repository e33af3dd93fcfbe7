package report

import (
	"cmp"
	"slices"
)

// kept is what blocks of one owner, whatever the way to its call site, hold at the end, which were never freed. Parameters are there for good; what grows by
// every step is a leak.
type kept struct {
	owner       int32
	size        int64 // of each block, where blocks have no owners; else 0
	bytes       int64
	blocks      int64
	first, last int64 // the steps that the oldest and the youngest were handed out in; 0: none
	steps       int64 // how many steps left blocks
	before      int64 // blocks from outside of steps
	grows       bool
}

// growing is from how many steps on what they left is taken to grow. Fewer are what a step keeps for the next.
const growing = 3

// site is an owner, whatever the way to its call site; where blocks have no owners, with a size of
// blocks.
type site struct {
	owner int32
	size  int64
}

// siteOf returns the function that gives a block its site.
func (a *account) siteOf() func(b *block) site {
	same := a.owners.merged()
	nameless := !a.owners.labelled && !a.owners.stacked
	return func(b *block) site {
		if nameless {
			return site{same[b.owner], b.size}
		}
		return site{owner: same[b.owner]}
	}
}

// addKept finds what was never freed.
func (a *account) addKept() {
	at := make(map[site]int)
	type visit struct {
		site int
		step int64
	}
	seen := make(map[visit]bool)
	siteOf := a.siteOf()
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.free < a.moments() || a.failing != 0 && a.stepOf(b) == a.failing {
			continue
		}
		where := siteOf(b)
		j, ok := at[where]
		if !ok {
			j = len(a.sites)
			at[where], a.sites = j, append(a.sites, kept{owner: where.owner, size: where.size})
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
		if v := (visit{j, step}); !seen[v] {
			seen[v] = true
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
		return cmp.Or(cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.owner, y.owner), cmp.Compare(y.size, x.size))
	})
}

// stepOf is the step that a block was handed out in: that of its label, or else the one that was open.
func (a *account) stepOf(b *block) int64 {
	if b.step != 0 || b.alloc < 0 {
		return b.step
	}
	if i := at(a.open, int(b.alloc), -1); i >= 0 {
		return a.steps[i].step
	}
	return 0
}
