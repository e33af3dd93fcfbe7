package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// compare compares two runs.
func compare(before, after *run) *Diff {
	d := &Diff{Before: before.name, After: after.name, Notes: append(append([]string{}, before.notes...), after.notes...)}
	d.peak("peak allocated", before.allocated, after.allocated)
	if before.reserved >= 0 && after.reserved >= 0 {
		d.peak("peak reserved", before.reserved, after.reserved)
	}
	for by := range dimensions {
		d.Dimensions = append(d.Dimensions, d.divide(by, before, after))
	}
	return d
}

func (d *Diff) peak(name string, before, after int64) {
	d.Peaks = append(d.Peaks, Row{Name: name, Before: Amount{Bytes: before}, After: Amount{Bytes: after}})
}

// divide compares the runs in one dimension.
func (d *Diff) divide(by dimension, before, after *run) Dimension {
	x := Dimension{Name: by.String(), Rows: []Row{}}
	var missing []string
	for _, r := range []*run{before, after} {
		if r.lacks[by] != "" && !slices.Contains(missing, r.lacks[by]) {
			missing = append(missing, r.lacks[by])
		}
	}
	if x.Missing = strings.Join(missing, "; "); x.Missing != "" {
		return x
	}
	a, b := before.sums[by], after.sums[by]
	was := map[key]key{}
	if by == byLine {
		was = moved(a, b)
	}
	if by == byStep {
		d.noteSteps(before, after)
	}
	matched := make(map[key]bool, len(was))
	for k, held := range b {
		old, ok := was[k]
		if !ok {
			old = k
		}
		matched[old] = true
		if _, both := a[old]; both || by != byStep {
			x.add(by, old, k, a[old], held)
		}
	}
	for k, held := range a {
		if !matched[k] && by != byStep {
			x.add(by, k, k, held, Amount{})
		}
	}
	slices.SortFunc(x.Rows, func(p, q Row) int {
		return cmp.Or(cmp.Compare(group(p), group(q)), cmp.Compare(abs(q.Bytes()), abs(p.Bytes())),
			cmp.Compare(p.Name, q.Name), cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line))
	})
	if by == byStep {
		for i := range x.Rows {
			x.Rows[i].Name, x.Rows[i].Line = strconv.FormatInt(x.Rows[i].Line, 10), 0
		}
	}
	return x
}

// add adds a holder; was is its key in the earlier run.
func (x *Dimension) add(by dimension, was, now key, before, after Amount) {
	if before == after {
		x.Equal++
		if by != byStep {
			x.EqualBytes += after.Bytes
		}
		return
	}
	r := Row{Name: now.name, File: now.file, Line: now.line, Before: before, After: after}
	if was != now {
		r.Was = was.line
	}
	x.Rows = append(x.Rows, r)
}

// group returns 0 for growth, 1 for shrinkage, and 2 for a difference of blocks alone.
func group(r Row) int {
	switch n := r.Bytes(); {
	case n > 0:
		return 0
	case n < 0:
		return 1
	}
	return 2
}

func abs(n int64) int64 { return max(n, -n) }

// moved pairs lines that are in one run alone, if each is the only such line of its function and
// file. The result has the old key of each new key.
func moved(before, after map[key]Amount) map[key]key {
	type place struct{ name, file string }
	alone := func(a, b map[key]Amount) map[place][]key {
		m := make(map[place][]key)
		for k := range a {
			if _, both := b[k]; !both {
				p := place{k.name, k.file}
				m[p] = append(m[p], k)
			}
		}
		return m
	}
	old, was := alone(before, after), make(map[key]key)
	for p, now := range alone(after, before) {
		if len(now) == 1 && len(old[p]) == 1 {
			was[now[0]] = old[p][0]
		}
	}
	return was
}

// noteSteps notes the steps that are in one run alone.
func (d *Diff) noteSteps(before, after *run) {
	alone := func(r, other *run) {
		n := 0
		for k := range r.sums[byStep] {
			if _, both := other.sums[byStep][k]; !both {
				n++
			}
		}
		if n > 0 {
			d.Notes = append(d.Notes, fmt.Sprintf("%d of %d steps of %s are not in %s", n, len(r.sums[byStep]), r.name, other.name))
		}
	}
	alone(before, after)
	alone(after, before)
}
