package reference

import "math"

// Groups returns the elements of x grouped by the element of an array of the given shape that
// broadcasts to them, in x's order.
func Groups(x Array, shape []int) [][]float64 {
	groups := make([][]float64, elements(shape))
	each(x.Shape, func(i int, index []int) {
		at := place(shape, index)
		groups[at] = append(groups[at], x.Data[i])
	})
	return groups
}

// Statistic returns f of every group.
func Statistic(x Array, shape []int, f func(group []float64) (value, size float64)) Result {
	r := newResult(shape)
	for i, g := range Groups(x, shape) {
		r.Data[i], r.Size[i] = f(g)
	}
	return r
}

// StatisticGrad returns an array of x's shape. f gets a group and its number, and returns the
// function that is applied to the group's elements.
func StatisticGrad(x Array, shape []int, f func(group []float64, i int) func(v float64) (value, size float64)) Result {
	r := newResult(x.Shape)
	of := make([]func(v float64) (value, size float64), elements(shape))
	for i, g := range Groups(x, shape) {
		of[i] = f(g, i)
	}
	each(x.Shape, func(i int, index []int) { r.Data[i], r.Size[i] = of[place(shape, index)](x.Data[i]) })
	return r
}

// Greatest returns the greatest number, or NaN if there is a NaN.
func Greatest(group []float64) float64 {
	greatest := math.Inf(-1)
	for _, v := range group {
		if math.IsNaN(v) {
			return v
		}
		greatest = math.Max(greatest, v)
	}
	return greatest
}

// Ties returns how many numbers equal v. With nans, NaN equals NaN.
func Ties(group []float64, v float64, nans bool) (n int) {
	for _, w := range group {
		if v == w || nans && math.IsNaN(v) && math.IsNaN(w) {
			n++
		}
	}
	return n
}

// LogSumExp returns log Σ exp, computed relative to the greatest number if that is finite.
func LogSumExp(group []float64) (value, size float64) {
	top := Greatest(group)
	if math.IsInf(top, 0) || math.IsNaN(top) {
		return top, math.Abs(top)
	}
	var sum Sum
	for _, v := range group {
		sum.Add(math.Exp(v - top))
	}
	return top + math.Log(sum.Value()), math.Abs(top) + math.Abs(math.Log(sum.Value())) + 1
}

// Moments returns the mean, and the sum of the squared deviations from it, with the magnitude of
// its terms.
func Moments(group []float64) (mean, squares, size float64) {
	var sum, all Sum
	for _, v := range group {
		sum.Add(v)
	}
	mean = sum.Value() / float64(len(group))
	for _, v := range group {
		d := v - mean
		all.AddProduct(d, d)
		size += (math.Abs(v) + math.Abs(mean)) * (math.Abs(v) + math.Abs(mean))
	}
	return mean, all.Value(), size
}

// Swap exchanges a dimension and the last one.
func Swap(x Array, axis int) Array {
	last := len(x.Shape) - 1
	y := Array{append([]int{}, x.Shape...), make([]float64, len(x.Data))}
	y.Shape[axis], y.Shape[last] = x.Shape[last], x.Shape[axis]
	each(x.Shape, func(i int, index []int) {
		to := append([]int{}, index...)
		to[axis], to[last] = index[last], index[axis]
		y.Data[place(y.Shape, to)] = x.Data[i]
	})
	return y
}

// SwapResult is Swap for a result.
func SwapResult(r Result, axis int) Result {
	return Result{Swap(r.Array, axis), Swap(Array{r.Shape, r.Size}, axis).Data}
}

// MoveLast makes dimension axis the last one.
func MoveLast(x Array, axis int) Array {
	y := Array{append(append(append([]int{}, x.Shape[:axis]...), x.Shape[axis+1:]...), x.Shape[axis]), make([]float64, len(x.Data))}
	each(x.Shape, func(i int, index []int) {
		to := append(append(append([]int{}, index[:axis]...), index[axis+1:]...), index[axis])
		y.Data[place(y.Shape, to)] = x.Data[i]
	})
	return y
}

// MoveFrom makes the last dimension dimension axis.
func MoveFrom(x Array, axis int) Array {
	last := len(x.Shape) - 1
	y := Array{append(append(append([]int{}, x.Shape[:axis]...), x.Shape[last]), x.Shape[axis:last]...), make([]float64, len(x.Data))}
	each(x.Shape, func(i int, index []int) {
		to := append(append(append([]int{}, index[:axis]...), index[last]), index[axis:last]...)
		y.Data[place(y.Shape, to)] = x.Data[i]
	})
	return y
}
