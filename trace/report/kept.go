package report

import (
	"cmp"
	"slices"
)

// kept is the blocks of one owner that were never freed, whatever the calls around its call site.
// Parameters are among them; blocks that every step adds are a leak.
type kept struct {
	owner  int32
	size   int64 // of each block, if blocks have no owners; else 0
	bytes  int64
	blocks int64
	// The steps in which the oldest and the youngest block were allocated; 0: none.
	first, last int64
	steps       int64 // number of steps that left blocks
	before      int64 // blocks from outside of steps
	grows       bool
}

// growing is the number of steps from which on their blocks are reported as growing. Fewer may be
// kept for the next step.
const growing = 3

// site is an owner, whatever the calls around its call site. If blocks have no owners it includes
// their size.
type site struct {
	owner int32
	size  int64
}

// siteOf returns the function that returns a block's site.
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

// addKept finds the blocks that were never freed.
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

// stepOf returns the step in which a block was allocated: that of its label, or else the open one.
func (a *account) stepOf(b *block) int64 {
	if b.step != 0 || b.alloc < 0 {
		return b.step
	}
	if i := at(a.open, int(b.alloc), -1); i >= 0 {
		return a.steps[i].step
	}
	return 0
}
