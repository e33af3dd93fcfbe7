package kernel

import "math"

// Rows are the vectors along one dimension of an array: Cols elements each, Inner elements apart. Inner is the size of the
// dimensions behind, 1 for the last dimension.
type Rows struct{ Cols, Inner int }

// start is where row i begins.
func (r Rows) start(i int) int { return i/r.Inner*(r.Cols*r.Inner) + i%r.Inner }

// row is the elements of a row, in buf unless they are neighbours.
func row[T Float](x []T, i int, r Rows, buf []T) []T {
	at := r.start(i)
	if r.Inner == 1 {
		return x[at:][:r.Cols]
	}
	for j := range buf {
		buf[j] = x[at+j*r.Inner]
	}
	return buf
}

// buffer is for row.
func buffer[T Float](r Rows) []T {
	if r.Inner == 1 {
		return nil
	}
	return make([]T, r.Cols)
}

// eachRow calls f with the parts of n rows.
func eachRow(n int, r Rows, f func(lo, hi int)) {
	if r.Cols > 0 && r.Inner > 0 {
		split(n/r.Cols, max(1, grainMath/r.Cols), f)
	}
}

// Softmax sets every row of dst to the softmax of that row of x or, with log, to its logarithm, in float64 and safe from
// overflow.
func Softmax[T Float](dst, x []T, r Rows, log bool) {
	eachRow(len(dst), r, func(lo, hi int) {
		buf := buffer[T](r)
		for i := lo; i < hi; i++ {
			in, at := row(x, i, r, buf), r.start(i)
			top, sum := logSum(in)
			if log {
				less := math.Log(sum)
				for j, v := range in {
					dst[at+j*r.Inner] = T(float64(v) - top - less)
				}
				continue
			}
			for j, v := range in {
				dst[at+j*r.Inner] = T(math.Exp(float64(v)-top) / sum)
			}
		}
	})
}

// SoftmaxGrad sets dst to the gradient of the argument by row: y * (dy - sum(dy*y)) for the softmax y, and
// dy - exp(y) * sum(dy) for its logarithm.
func SoftmaxGrad[T Float](dst, dy, y []T, r Rows, log bool) {
	eachRow(len(dst), r, func(lo, hi int) {
		one, two := buffer[T](r), buffer[T](r)
		for i := lo; i < hi; i++ {
			g, v, at := row(dy, i, r, one), row(y, i, r, two), r.start(i)
			if log {
				sum := total(g)
				for j := range v {
					dst[at+j*r.Inner] = T(float64(g[j]) - math.Exp(float64(v[j]))*sum)
				}
				continue
			}
			d := dot(g, v)
			for j := range v {
				dst[at+j*r.Inner] = T(float64(v[j]) * (float64(g[j]) - d))
			}
		}
	})
}

// ArgMax sets dst[i] to the index of the greatest element of row i of x, the first one of several. NaN is
// greater than everything, as in PyTorch.
func ArgMax[T Float](dst []int32, x []T, r Rows) {
	buf := buffer[T](r)
	for i := range dst {
		in := row(x, i, r, buf)
		best := 0
		for j, v := range in {
			if v > in[best] || (v != v && in[best] == in[best]) {
				best = j
			}
		}
		dst[i] = int32(best)
	}
}

// logSum returns the greatest element of the row and the sum of exp(v - greatest).
func logSum[T Float](row []T) (top, sum float64) {
	top = math.Inf(-1)
	for _, v := range row {
		if float64(v) > top {
			top = float64(v)
		}
	}
	return top, sumExp(row, top)
}

// sumExp is the sum of exp(v - top).
func sumExp[T Float](row []T, top float64) (sum float64) {
	if len(row) > leaf {
		h := half(len(row))
		return sumExp(row[:h], top) + sumExp(row[h:], top)
	}
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	return sum
}
