package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// Grains of loops with vector instructions. The cheap loops take 0.05 to 0.2 ns per element, most
// of it waiting for memory; the transcendental ones take about 0.5 ns and more.
const (
	grainVector     = 128 << 10
	grainVectorMath = 16 << 10
)

// most is the largest number of elements of a call of assembly, which the scheduler and the garbage
// collector can't interrupt.
const most = 8 << 10

// chunks calls f for parts of [0, n), each of most elements or fewer.
func chunks(n int, f func(lo, hi int)) {
	for lo := 0; lo < n; lo += most {
		f(lo, min(lo+most, n))
	}
}

// vectors reports whether loops use vector instructions.
func vectors() bool { return simd.Active() > simd.NEON }

// mathGrain returns the grain of loops of transcendental functions, and rowGrain the grain of other
// loops of package simd.
func mathGrain() int {
	if vectors() {
		return grainVectorMath
	}
	return grainMath
}

func rowGrain() int {
	if vectors() {
		return grainCheap
	}
	return grainCheap / 4
}

// mapVector sets dst[i] = f(x[i]).
func mapVector[T Float](f simd.UnaryFunc[T], grain int, dst, x []T, c, d T) {
	if len(dst) < 2*grain {
		mapPart(f, dst, x, c, d)
		return
	}
	split(len(dst), grain, func(lo, hi int) { mapPart(f, dst[lo:hi], x[lo:hi], c, d) })
}

func mapPart[T Float](f simd.UnaryFunc[T], dst, x []T, c, d T) {
	chunks(len(dst), func(lo, hi int) { f(&dst[lo], &x[lo], hi-lo, c, d) })
}

// zipPart sets dst[i] = f(a[i*sa], b[i*sb]), for strides of 0 and 1.
func zipPart[T Float](f simd.BinaryFunc[T], dst, a, b []T, sa, sb int) {
	for lo := 0; lo < len(dst); lo += most {
		f(&dst[lo], &a[lo*sa], &b[lo*sb], min(len(dst)-lo, most), sa, sb)
	}
}
