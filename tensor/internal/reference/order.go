package reference

import (
	"math"
	"sort"
)

// along calls f with the positions of the elements of every line along a dimension.
func along(shape []int, axis int, f func(line []int)) {
	first := append([]int{}, shape...)
	first[axis] = min(1, shape[axis])
	each(first, func(_ int, index []int) {
		line := make([]int, shape[axis])
		for i := range line {
			line[i] = place(shape, with(index, axis, i))
		}
		f(line)
	})
}

// Sort returns the first keep elements of every line along a dimension, sorted, and their positions
// in the line. NaN is the greatest, and equal elements keep their order.
func Sort(x Array, axis, keep int, descending bool) (values Result, places []int32) {
	shape := with(x.Shape, axis, keep)
	values, places = newResult(shape), make([]int32, elements(shape))
	var lines [][]int
	along(shape, axis, func(line []int) { lines = append(lines, line) })
	along(x.Shape, axis, func(line []int) {
		order := make([]int, len(line))
		for i := range order {
			order[i] = i
		}
		less := func(a, b float64) bool { return a < b || math.IsNaN(b) && !math.IsNaN(a) }
		sort.SliceStable(order, func(i, j int) bool {
			a, b := x.Data[line[order[i]]], x.Data[line[order[j]]]
			if descending {
				return less(b, a)
			}
			return less(a, b)
		})
		if keep == 0 {
			return
		}
		for i, to := range lines[0] {
			values.Data[to], places[to] = x.Data[line[order[i]]], int32(order[i])
		}
		lines = lines[1:]
	})
	return values, places
}

// CumSum returns the sums of the elements up to each along a dimension or, in reverse, from each
// on.
func CumSum(x Array, axis int, reverse bool) Result {
	r := newResult(x.Shape)
	along(x.Shape, axis, func(line []int) {
		var sum Sum
		for i := range line {
			at := line[i]
			if reverse {
				at = line[len(line)-1-i]
			}
			sum.Add(x.Data[at])
			r.Data[at], r.Size[at] = sum.Value(), sum.Size()
		}
	})
	return r
}

// NormGrad returns the gradient of an element v of a group, for a gradient d of the group's norm,
// whose value is norm. It is 0 where the norm does not depend on v, whatever d is.
func NormGrad(group []float64, d, norm, p, v float64) float64 {
	sign := 0.0
	if v != 0 && !math.IsNaN(v) {
		sign = math.Copysign(1, v)
	}
	switch {
	case p == 1:
		return d * sign
	case p == 2 && norm == 0:
		return 0
	case p == 2:
		return d * (v / norm)
	}
	ties := 0
	for _, w := range group {
		if math.Abs(w) == norm {
			ties++
		}
	}
	if math.Abs(v) != norm {
		return 0
	}
	return d * sign / float64(ties)
}

// Scatter returns x with the elements at an index of the given shape replaced by those of src. With
// add, the elements of src are added instead.
func Scatter(x Array, axis int, index []int64, src Array, add bool) Result {
	r := newResult(x.Shape)
	sums := make([]Sum, len(r.Data))
	for i, v := range x.Data {
		sums[i].Add(v)
		r.Data[i] = v
	}
	each(src.Shape, func(i int, from []int) {
		if index[i] >= 0 && index[i] < int64(x.Shape[axis]) {
			to := at(r.Array, with(from, axis, int(index[i])))
			sums[to].Add(src.Data[i])
			r.Data[to] = src.Data[i]
		}
	})
	for i := range sums {
		if add {
			r.Data[i], r.Size[i] = sums[i].Value(), sums[i].Size()
		}
	}
	return r
}

// OneHot returns vectors that are 1 at a label and 0 elsewhere.
func OneHot(labels []int64, shape []int, classes int) Result {
	r := newResult(append(append([]int{}, shape...), classes))
	for i, label := range labels {
		if label >= 0 && label < int64(classes) {
			r.Data[i*classes+int(label)] = 1
		}
	}
	return r
}

// Flip returns the elements of x in reverse order along the axes.
func Flip(x Array, axes []int) Result {
	return moved(x.Shape, x, func(index []int) []int {
		for _, a := range axes {
			index = with(index, a, x.Shape[a]-1-index[a])
		}
		return index
	})
}

// Roll returns the elements of x shifted along the axes.
func Roll(x Array, shifts, axes []int) Result {
	return moved(x.Shape, x, func(index []int) []int {
		for i, a := range axes {
			n := x.Shape[a]
			index = with(index, a, ((index[a]-shifts[i])%n+n)%n)
		}
		return index
	})
}
