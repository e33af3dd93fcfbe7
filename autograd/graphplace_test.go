package autograd_test

import "slices"

// permutation is a random order of n dimensions.
func permutation(random choice, n int) []int {
	var order []int
	for i := range n {
		order = slices.Insert(order, random.IntN(i+1), i)
	}
	return order
}

// ranges is a random range of a random dimension.
func ranges(random choice, xs []array) params {
	shape := xs[0].shape
	if len(shape) == 0 {
		return params{}
	}
	axis := random.IntN(len(shape))
	start := random.IntN(shape[axis] + 1)
	return params{axes: []int{axis}, shape: []int{start, random.IntN(shape[axis] - start + 1)}}
}

// margins are the paddings of one dimension. After an error a variable has none.
func margins(rank, axis, before, after int) (b, a []int) {
	b, a = make([]int, rank), make([]int, rank)
	if rank > axis {
		b[axis], a[axis] = before, after
	}
	return b, a
}

// catAxis is a dimension along which two shapes can be joined, or -1.
func catAxis(a, b []int) int {
	if len(a) != len(b) {
		return -1
	}
	axis := len(a) - 1
	for i := range a {
		if a[i] != b[i] {
			axis = i
		}
	}
	for i := range a {
		if i != axis && a[i] != b[i] {
			return -1
		}
	}
	return axis
}

func (a array) permuted(dims []int) array {
	shape := make([]int, len(dims))
	for i, d := range dims {
		shape[i] = a.shape[d]
	}
	y := zeros(shape...)
	each(shape, func(i int, index []int) {
		from := make([]int, len(index))
		for j, d := range dims {
			from[d] = index[j]
		}
		y.data[i] = a.at(from)
	})
	return y
}

func (a array) padded(value float64, before, after []int) array {
	shape := slices.Clone(a.shape)
	for i := range shape {
		shape[i] += before[i] + after[i]
	}
	y := zeros(shape...)
	each(shape, func(i int, index []int) {
		from, inside := slices.Clone(index), true
		for d := range from {
			from[d] -= before[d]
			inside = inside && from[d] >= 0 && from[d] < a.shape[d]
		}
		y.data[i] = value
		if inside {
			y.data[i] = a.at(from)
		}
	})
	return y
}

func joined(axis int, xs []array) array {
	if axis < 0 {
		return array{}
	}
	before, after := margins(len(xs[0].shape), axis, 0, xs[1].shape[axis])
	y := xs[0].padded(0, before, after)
	before, after = margins(len(xs[0].shape), axis, xs[0].shape[axis], 0)
	second := xs[1].padded(0, before, after)
	for i, v := range second.data {
		y.data[i] += v
	}
	return y
}
