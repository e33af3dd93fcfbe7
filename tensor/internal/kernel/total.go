package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Sums are taken in float64, and in pairs, so that rounding errors grow with the logarithm of the number of terms:
// what float32 loses to the sum itself is nothing, and what float64 loses is a few units in the last place. Their order
// depends on the number of terms alone, and on the instruction set.

// leaf is the number of terms that are added one after the other before sums are added in pairs.
const leaf = 128

// block is that of terms that package simd adds, which has many sums at a time.
const block = 32 * leaf

// half is about n/2, and a multiple of leaf.
func half(n int) int { return (n/leaf + 1) / 2 * leaf }

// halfBlocks is about n/2, and a multiple of block, for n > block.
func halfBlocks(n int) int { return (n/block + 1) / 2 * block }

// total is the sum of x, whose blocks are added in pairs.
func total[T Float](x []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return total(x[:h]) + total(x[h:])
	}
	return simd.Total(x)
}

// dot is the sum of the products of x and y, whose blocks are added in pairs.
func dot[T Float](x, y []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return dot(x[:h], y[:h]) + dot(x[h:], y[h:])
	}
	return simd.Dot(x, y)
}

// deviations is the sum of the squares of x - mean, whose blocks are added in pairs.
func deviations[T Float](x []T, mean float64) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return deviations(x[:h], mean) + deviations(x[h:], mean)
	}
	return simd.Deviations(x, mean)
}

// sumExp is the sum of exp(v - top), whose blocks are added in pairs.
func sumExp[T Float](x []T, top float64) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return sumExp(x[:h], top) + sumExp(x[h:], top)
	}
	return simd.SumExp(x, top)
}

// dotDeviations is the sum of dy, and of that times x - mean.
func dotDeviations[T Float](dy, x []T, mean float64) (sum, dot float64) {
	if len(x) > block {
		h := halfBlocks(len(x))
		a, b := dotDeviations(dy[:h], x[:h], mean)
		c, d := dotDeviations(dy[h:], x[h:], mean)
		return a + c, b + d
	}
	return simd.DotDeviations(dy, x, []T{1}, mean)
}

// greatest is the greatest number of x, NaN apart, or -Inf.
func greatest[T Float](x []T) T {
	top := T(math.Inf(-1))
	for lo := 0; lo < len(x); lo += most {
		top = max(top, simd.Greatest(x[lo:min(lo+most, len(x))]))
	}
	return top
}

// sumOf is the sum of f(i) for i in [lo, hi).
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

// parts is a fixed number, so that sums do not depend on the number of processors.
const parts = 16

// sumOfParts is the sum of f for parts of [0, n), at least grain of which are worth a goroutine.
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
