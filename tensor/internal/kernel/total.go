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

// total is the sum of x.
func total[T Float](x []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return total(x[:h]) + total(x[h:])
	}
	return simd.Total(x)
}

// dot is the sum of the products of x and y.
func dot[T Float](x, y []T) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return dot(x[:h], y[:h]) + dot(x[h:], y[h:])
	}
	return simd.Dot(x, y)
}

// deviations is the sum of the squares of x - mean.
func deviations[T Float](x []T, mean float64) float64 {
	if len(x) > block {
		h := halfBlocks(len(x))
		return deviations(x[:h], mean) + deviations(x[h:], mean)
	}
	return simd.Deviations(x, mean)
}

// dotDeviations is the sum of dy times w, and of that times x - mean. w has one number for each of the others, or one for all.
func dotDeviations[T Float](dy, x, w []T, mean float64) (sum, dot float64) {
	if len(x) > block {
		h := halfBlocks(len(x))
		a, b := dotDeviations(dy[:h], x[:h], part(w, 0, h), mean)
		c, d := dotDeviations(dy[h:], x[h:], part(w, h, len(x)), mean)
		return a + c, b + d
	}
	return simd.DotDeviations(dy, x, w, mean)
}

// part is [lo, hi) of w, or the one number for all.
func part[T Float](w []T, lo, hi int) []T {
	if len(w) == 1 {
		return w
	}
	return w[lo:hi]
}

// greatest is the greatest number of x, NaN apart, or -Inf.
func greatest[T Float](x []T) T {
	top := T(math.Inf(-1))
	for lo := 0; lo < len(x); lo += most {
		top = max(top, simd.Greatest(x[lo:min(lo+most, len(x))]))
	}
	return top
}

// sumExp is the sum of exp(v - top).
func sumExp[T Float](x []T, top float64) (sum float64) {
	if len(x) > block {
		h := halfBlocks(len(x))
		return sumExp(x[:h], top) + sumExp(x[h:], top)
	}
	return simd.SumExp(x, top)
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
