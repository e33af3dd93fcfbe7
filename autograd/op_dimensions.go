package autograd

import "slices"

// dimensions is a list of few numbers, such as a shape, in a record of an operation: a copy, as the caller may write its own
// before Backward.
type dimensions struct {
	few [6]int
	n   int
	all []int // if there is no room in few
}

func newDimensions(list []int) (d dimensions) {
	d.n = len(list)
	if copy(d.few[:], list) < d.n {
		d.all = slices.Clone(list)
	}
	return d
}

// list is nil for none.
func (d *dimensions) list() []int {
	switch {
	case d.n == 0:
		return nil
	case d.all != nil:
		return d.all
	}
	return d.few[:d.n]
}
