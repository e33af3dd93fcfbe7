package reference

import "math"

// at returns the position of an array's element at an index.
func at(a Array, index []int) int { return place(a.Shape, index) }

// with returns the index with another number in dimension axis.
func with(index []int, axis, number int) []int {
	other := append([]int{}, index...)
	other[axis] = number
	return other
}

// IndexSelect takes elements along a dimension. Elements for an index outside of x are NaN.
func IndexSelect(x Array, axis int, index []int64) Result {
	r := newResult(with(x.Shape, axis, len(index)))
	each(r.Shape, func(i int, to []int) {
		r.Data[i] = math.NaN()
		if from := index[to[axis]]; from >= 0 && from < int64(x.Shape[axis]) {
			r.Data[i] = x.Data[at(x, with(to, axis, int(from)))]
		}
	})
	return r
}

// IndexSelectGrad adds dy to the elements from which IndexSelect took them, in an array of the
// given shape. It ignores rows with index skip. mean divides each sum by the number of its terms.
func IndexSelectGrad(dy Array, axis int, index []int64, shape []int, skip int64, mean bool) Result {
	r := newResult(shape)
	sums, terms := make([]Sum, len(r.Data)), make([]int, len(r.Data))
	each(dy.Shape, func(i int, from []int) {
		to := index[from[axis]]
		if to < 0 || to >= int64(shape[axis]) || to == skip {
			return
		}
		p := at(r.Array, with(from, axis, int(to)))
		sums[p].Add(dy.Data[i])
		terms[p]++
	})
	for i := range sums {
		n := 1.0
		if mean && terms[i] > 0 {
			n = float64(terms[i])
		}
		r.Data[i], r.Size[i] = sums[i].Value()/n, sums[i].Size()/n
	}
	return r
}

// Gather selects elements along a dimension by an index of the given shape.
func Gather(x Array, axis int, index []int64, shape []int) Result {
	r := newResult(shape)
	each(shape, func(i int, to []int) {
		r.Data[i] = math.NaN()
		if index[i] >= 0 && index[i] < int64(x.Shape[axis]) {
			r.Data[i] = x.Data[at(x, with(to, axis, int(index[i])))]
		}
	})
	return r
}

// GatherGrad adds dy, of the index's shape, to the elements that Gather selected, in an array of
// the given shape.
func GatherGrad(dy Array, axis int, index []int64, shape []int) Result {
	r := newResult(shape)
	sums := make([]Sum, len(r.Data))
	each(dy.Shape, func(i int, from []int) {
		if index[i] >= 0 && index[i] < int64(shape[axis]) {
			sums[at(r.Array, with(from, axis, int(index[i])))].Add(dy.Data[i])
		}
	})
	for i := range sums {
		r.Data[i], r.Size[i] = sums[i].Value(), sums[i].Size()
	}
	return r
}
