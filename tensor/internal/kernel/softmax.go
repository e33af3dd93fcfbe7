package kernel

import "math"

// Softmax sets every row of dst, which has cols columns, to the softmax of that row of x, in float64 and
// safe from overflow.
func Softmax[T Float](dst, x []T, cols int) {
	if len(dst) == 0 {
		return
	}
	split(len(dst)/cols, max(1, grainMath/cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := x[i*cols:][:cols]
			top, sum := logSum(row)
			for j, v := range row {
				dst[i*cols+j] = T(math.Exp(float64(v)-top) / sum)
			}
		}
	})
}

// SoftmaxGrad sets dst to the gradient of the softmax's argument, y * (dy - sum(dy*y)) by row.
func SoftmaxGrad[T Float](dst, dy, y []T, cols int) {
	if len(dst) == 0 {
		return
	}
	for i := 0; i < len(dst); i += cols {
		g, v := dy[i:i+cols], y[i:i+cols]
		d := dot(g, v)
		for j := range v {
			dst[i+j] = T(float64(v[j]) * (float64(g[j]) - d))
		}
	}
}

// ArgMax sets dst[i] to the index of the greatest element of row i of x, the first one of several. NaN is
// greater than everything, as in PyTorch.
func ArgMax[T Float](dst []int32, x []T, cols int) {
	for i := range dst {
		row := x[i*cols:][:cols]
		best := 0
		for j, v := range row {
			if v > row[best] || (v != v && row[best] == row[best]) {
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
