package kernel

// Sums are taken in float64, and in pairs, so that rounding errors grow with the logarithm of the number of terms:
// what float32 loses to the sum itself is nothing, and what float64 loses is a few units in the last place.

// leaf is the number of terms that are added one after the other before sums are added in pairs.
const leaf = 128

// half is about n/2, and a multiple of leaf.
func half(n int) int { return (n/leaf + 1) / 2 * leaf }

// total is the sum of x, in four lanes in a leaf.
func total[T Float](x []T) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return total(x[:h]) + total(x[h:])
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

// dot is the sum of the products of x and y.
func dot[T Float](x, y []T) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return dot(x[:h], y[:h]) + dot(x[h:], y[h:])
	}
	sum := 0.0
	for i, v := range x {
		sum += float64(v) * float64(y[i])
	}
	return sum
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
