package reference

import "math"

// Sample returns the weight of each of in elements in element o of out results, which is a row of a
// matrix.
type Sample func(in, out, o int) []float64

// only returns a row with weight 1 for element i and 0 for the others.
func only(in, i int) []float64 {
	row := make([]float64, in)
	row[i] = 1
	return row
}

// SampleNearest takes the element with the index o*step, rounded down in float32.
func SampleNearest(step float64) Sample {
	return func(in, _, o int) []float64 {
		i := 0
		for i+1 < in && float32(i+1) <= float32(o)*float32(step) {
			i++
		}
		return only(in, i)
	}
}

// SampleLinear is a tent, one element wide on both sides, around o*step + shift, limited to the
// first and the last element.
func SampleLinear(step, shift float64) Sample {
	return func(in, _, o int) []float64 {
		at := min(max(float64(o)*step+shift, 0), float64(in-1))
		row := make([]float64, in)
		for i := range row {
			if v := float64(i); v <= at {
				row[i] = max(0, 1-(at-v))
			} else {
				row[i] = max(0, at-(v-1))
			}
		}
		return row
	}
}

// SampleReflect pads with before elements ahead of the first one. It walks over the elements, and
// turns around at both ends.
func SampleReflect(before int) Sample {
	return func(in, _, o int) []float64 {
		at, step := 0, -1 // backwards, for a position before the first element
		walk := func(n int) {
			for range n {
				if in > 1 && (at+step < 0 || at+step >= in) {
					step = -step
				}
				if in > 1 {
					at += step
				}
			}
		}
		n := o - before // the distance from the first element
		if n >= 0 {
			step = 1
		}
		walk(max(n, -n))
		return only(in, at)
	}
}

// SampleReplicate takes the nearest element.
func SampleReplicate(before int) Sample {
	return func(in, _, o int) []float64 {
		best := 0
		for i := range in {
			if math.Abs(float64(i-(o-before))) < math.Abs(float64(best-(o-before))) {
				best = i
			}
		}
		return only(in, best)
	}
}

// Resample returns x with its last two dimensions sampled.
func Resample(x Array, shape []int, rows, cols Sample) Result {
	sums := make([]Sum, elements(shape))
	resampled(x.Shape, shape, rows, cols, func(y, from int, share float64) { sums[y].AddProduct(share, x.Data[from]) })
	return resultOf(shape, sums)
}

// ResampleGrad returns the gradient of x, of the given shape.
func ResampleGrad(dy Array, shape []int, rows, cols Sample) Result {
	sums := make([]Sum, elements(shape))
	resampled(shape, dy.Shape, rows, cols, func(y, x int, share float64) { sums[x].AddProduct(share, dy.Data[y]) })
	return resultOf(shape, sums)
}

// resampled calls f for each element of x with a weight in an element of y.
func resampled(xs, ys []int, rows, cols Sample, f func(y, x int, share float64)) {
	n := len(xs)
	in, out := [2]int(xs[n-2:]), [2]int(ys[n-2:])
	each(ys, func(y int, index []int) {
		plane := y / (out[0] * out[1]) * in[0] * in[1]
		high, wide := rows(in[0], out[0], index[n-2]), cols(in[1], out[1], index[n-1])
		for i, a := range high {
			for j, b := range wide {
				if a*b != 0 {
					f(y, plane+i*in[1]+j, a*b)
				}
			}
		}
	})
}
