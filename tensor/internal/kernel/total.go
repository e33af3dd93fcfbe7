package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Sums are pairwise and in float64, so that rounding errors grow with the logarithm of the number
// of terms. Float64 then loses a few units in the last place, which vanish when the sum is rounded
// to float32. The order of a sum depends only on the number of terms and on the instruction set.

// leaf is the number of terms that are added one after the other before sums are added in pairs.
const leaf = 128

// block is the number of terms that package simd adds at a time, in many accumulators.
const block = 32 * leaf

// half returns about n/2, as a multiple of leaf.
func half(n int) int { return (n/leaf + 1) / 2 * leaf }

// halfBlocks returns about n/2, as a multiple of block, for n > block.
func halfBlocks(n int) int { return (n/block + 1) / 2 * block }

// total returns the sum of x. Its blocks are added in pairs.
func total[T Float](x []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return total(x[:h]) + total(x[h:])
	}
	return simd.Total(x)
}

// dot returns the sum of the products of x and y. Its blocks are added in pairs.
func dot[T Float](x, y []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return dot(x[:h], y[:h]) + dot(x[h:], y[h:])
	}
	return simd.Dot(x, y)
}

// deviations returns the sum of the squares of x - mean. Its blocks are added in pairs.
func deviations[T Float](x []T, mean float64) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return deviations(x[:h], mean) + deviations(x[h:], mean)
	}
	return simd.Deviations(x, mean)
}

// sumExp returns the sum of exp(v - top). Its blocks are added in pairs.
func sumExp[T Float](x []T, top float64) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return sumExp(x[:h], top) + sumExp(x[h:], top)
	}
	return simd.SumExp(x, top)
}

// dotDeviations returns the sum of dy, and the sum of dy times x - mean.
func dotDeviations[T Float](dy, x []T, mean float64) (sum, dot float64) {
	if len(x) > block {
		h := halfBlocks(len(x))
		a, b := dotDeviations(dy[:h], x[:h], mean)
		c, d := dotDeviations(dy[h:], x[h:], mean)
		return a + c, b + d
	}
	return simd.DotDeviations(dy, x, []T{1}, mean)
}

// greatest returns the greatest number of x, ignoring NaN, or -Inf.
func greatest[T Float](x []T) T {
	top := T(math.Inf(-1))
	for lo := 0; lo < len(x); lo += most {
		top = max(top, simd.Greatest(x[lo:min(lo+most, len(x))]))
	}
	return top
}

// sumOf returns the sum of f(i) for i in [lo, hi).
func sumOf(lo, hi int, f func(i int) float64) float64 {
	if hi-lo > leaf {
		h := half(hi - lo)
		return sumOf(lo, lo+h, f) + sumOf(lo+h, hi, f)
	}
	sum := 0.0
	for i := lo; i < hi; i++ {
		sum += f(i)
	}
	return sum
}

// parts is constant, so that sums do not depend on the number of processors.
const parts = 16

// sumOfParts returns the sum of f over the parts of [0, n). Each goroutine computes at least grain
// parts.
func sumOfParts(n, grain int, f func(lo, hi int) float64) (sum float64) {
	var sums [parts]float64
	split(parts, grain, func(lo, hi int) {
		for k := lo; k < hi; k++ {
			sums[k] = f(k*n/parts, (k+1)*n/parts)
		}
	})
	for _, s := range sums {
		sum += s
	}
	return sum
}
