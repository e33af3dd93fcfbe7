package autograd

import "slices"

// dimensions is a copy of a list of numbers, such as a shape, in a record. The caller may overwrite
// its list before Backward.
type dimensions struct {
	few [6]int
	n   int
	all []int // the list if it is longer than few
}

func newDimensions(list []int) (d dimensions) {
	d.n = len(list)
	if copy(d.few[:], list) < d.n {
		d.all = slices.Clone(list)
	}
	return d
}

// list returns the numbers, or nil if there are none.
func (d *dimensions) list() []int {
	switch {
	case d.n == 0:
		return nil
	case d.all != nil:
		return d.all
	}
	return d.few[:d.n]
}
