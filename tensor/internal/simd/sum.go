package simd

import "math"

// Sums in plain Go of more than leaf terms are pairwise, so that rounding errors grow with the
// logarithm of the number of terms. The assembly has 4 accumulators of as many lanes as a register
// holds. Its callers sum at most some thousand numbers at a time, and add those sums pairwise.
const leaf = 128

// half returns about n/2, as a multiple of leaf.
func half(n int) int { return (n/leaf + 1) / 2 * leaf }

// step returns the stride of x: 0 if x is a single element for all, otherwise 1.
func step[T Float](x []T) int {
	if len(x) == 1 {
		return 0
	}
	return 1
}

func plainGreatest[T Float](x []T) T {
	top := T(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}

func plainTotal[T Float](x []T) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return plainTotal(x[:h]) + plainTotal(x[h:])
	}
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0])
		b += float64(x[1])
		c += float64(x[2])
		d += float64(x[3])
	}
	for _, v := range x {
		a += float64(v)
	}
	return (a + b) + (c + d)
}

func plainDot[T Float](x, y []T) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return plainDot(x[:h], y[:h]) + plainDot(x[h:], y[h:])
	}
	sum := 0.0
	for i, v := range x {
		sum += float64(v) * float64(y[i])
	}
	return sum
}

func plainDeviations[T Float](x []T, mean float64) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return plainDeviations(x[:h], mean) + plainDeviations(x[h:], mean)
	}
	sum := 0.0
	for _, v := range x {
		d := float64(v) - mean
		sum += d * d
	}
	return sum
}

func plainDotDeviations[T Float](dy, x, w []T, mean float64) (sum, dot float64) {
	if len(dy) > leaf {
		h, k := half(len(dy)), 0
		if len(w) > 1 {
			k = h
		}
		a, b := plainDotDeviations(dy[:h], x[:h], w[:max(1, k)], mean)
		c, d := plainDotDeviations(dy[h:], x[h:], w[k:], mean)
		return a + c, b + d
	}
	s := step(w)
	for i, g := range dy {
		g := float64(g) * float64(w[i*s])
		sum += g
		dot += g * (float64(x[i]) - mean)
	}
	return sum, dot
}

func plainSumExp[T Float](x []T, top float64) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return plainSumExp(x[:h], top) + plainSumExp(x[h:], top)
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return sum
}

func plainAddTo[T Float](sums []float64, x []T) {
	for i := range sums {
		sums[i] += float64(x[i])
	}
}

func plainAddDeviations[T Float](sums, dots []float64, dy, x []T, mean, rstd float64) {
	for i := range sums {
		g := float64(dy[i])
		sums[i] += g
		dots[i] += g * ((float64(x[i]) - mean) * rstd)
	}
}
