package simd

import (
	"fmt"
	"testing"
)

// benchmarked is a number of elements that fits into the first-level cache.
const benchmarked = 2048

// levelsOf runs a benchmark at every level that has assembly.
func levelsOf(b *testing.B, f func(b *testing.B)) {
	for _, l := range Available() {
		if l < AVX2 {
			continue
		}
		b.Run(l.String(), func(b *testing.B) {
			defer Use(l)()
			f(b)
		})
	}
}

func numbers[T Float](n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(i%200)/50 - 2.01
	}
	return x
}

func BenchmarkUnary(b *testing.B) {
	for f := NoUnary + 1; f < unaries; f++ {
		b.Run(fmt.Sprintf("%v/float32", f), func(b *testing.B) { levelsOf(b, benchUnary[float32](f)) })
		b.Run(fmt.Sprintf("%v/float64", f), func(b *testing.B) { levelsOf(b, benchUnary[float64](f)) })
	}
}

func benchUnary[T Float](f Unary) func(b *testing.B) {
	return func(b *testing.B) {
		run, dst, x := UnaryOf[T](f), make([]T, benchmarked), numbers[T](benchmarked)
		for b.Loop() {
			run(&dst[0], &x[0], len(x), 1, 2)
		}
		perElement(b)
	}
}

// perElement reports the time per element instead of per call.
func perElement(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchmarked, "ns/element")
}
