package reference

// Permute returns x with its dimension dims[i] as dimension i.
func Permute(x Array, dims []int) Result {
	shape := make([]int, len(dims))
	for i, d := range dims {
		shape[i] = x.Shape[d]
	}
	return moved(shape, x, func(index []int) []int {
		from := make([]int, len(index))
		for i, d := range dims {
			from[d] = index[i]
		}
		return from
	})
}

// Pad returns x with before[i] elements of value before dimension i and after[i] elements after it.
// Negative numbers remove elements.
func Pad(x Array, value float64, before, after []int) Result {
	shape := make([]int, len(x.Shape))
	for i, d := range x.Shape {
		shape[i] = before[i] + d + after[i]
	}
	r := newResult(shape)
	each(shape, func(i int, index []int) {
		r.Data[i] = value
		from := make([]int, len(index))
		for d := range index {
			from[d] = index[d] - before[d]
			if from[d] < 0 || from[d] >= x.Shape[d] {
				return
			}
		}
		r.Data[i] = x.Data[place(x.Shape, from)]
	})
	return r
}

// Cat concatenates arrays along a dimension.
func Cat(axis int, xs []Array) Result {
	shape := append([]int{}, xs[0].Shape...)
	shape[axis] = 0
	for _, x := range xs {
		shape[axis] += x.Shape[axis]
	}
	r := newResult(shape)
	each(shape, func(i int, index []int) {
		from := append([]int{}, index...)
		for _, x := range xs {
			if from[axis] < x.Shape[axis] {
				r.Data[i] = x.Data[place(x.Shape, from)]
				return
			}
			from[axis] -= x.Shape[axis]
		}
	})
	return r
}

func moved(shape []int, x Array, from func(index []int) []int) Result {
	r := newResult(shape)
	each(shape, func(i int, index []int) { r.Data[i] = x.Data[place(x.Shape, from(index))] })
	return r
}

// Triangle keeps the elements of matrices that are on a diagonal or on its lower or upper side.
func Triangle(x Array, diagonal int, upper bool) Result {
	r := newResult(x.Shape)
	n := len(x.Shape)
	each(x.Shape, func(i int, index []int) {
		if row, col := index[n-2], index[n-1]; upper && col-row >= diagonal || !upper && col-row <= diagonal {
			r.Data[i] = x.Data[i]
		}
	})
	return r
}
