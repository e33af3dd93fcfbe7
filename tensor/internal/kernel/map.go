package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Map sets dst[i] = f(x[i]).
func Map[T Float](f *Function, dst, x []T, c, d float64) {
	grain, vectorGrain := grainMath, grainVectorMath
	if f.cheap {
		grain, vectorGrain = grainCheap, grainVector
	}
	if g := simd.UnaryOf[T](f.vector); g != nil {
		mapVector(g, vectorGrain, dst, x, T(c), T(d))
		return
	}
	if run := either[func(dst, x []T, c T)](f.loop.single, f.loop.double); run != nil {
		split(len(dst), grain, func(lo, hi int) { run(dst[lo:hi], x[lo:hi], T(c)) })
		return
	}
	of, first, second := f.Value, float64(T(c)), float64(T(d))
	split(len(dst), grain, func(lo, hi int) {
		for i, v := range x[lo:hi] {
			dst[lo+i] = T(of(float64(v), first, second))
		}
	})
}

// MapGrad sets dst[i] to the gradient of f's argument: dy[i] times the derivative at saved[i].
func MapGrad[T Float](f *Function, dst, dy, saved []T, c, d float64) {
	if g := simd.GradientOf[T](f.vectorSlope); g != nil {
		split(len(dst), grainVectorMath, func(lo, hi int) {
			for ; lo < hi; lo += most {
				g(&dst[lo], &dy[lo], &saved[lo], min(hi-lo, most), T(c), T(d))
			}
		})
		return
	}
	of, first, second := f.Slope, float64(T(c)), float64(T(d))
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = T(of(float64(dy[i]), float64(saved[i]), first, second))
		}
	})
}

// relu keeps NaN, as in PyTorch.
func relu[T Float](dst, x []T, _ T) {
	dst = dst[:len(x)]
	for i, v := range x {
		if v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

func neg[T Float](dst, x []T, _ T) {
	for i, v := range x {
		dst[i] = -v
	}
}

func square[T Float](dst, x []T, _ T) {
	for i, v := range x {
		dst[i] = v * v
	}
}

func addScalar[T Float](dst, x []T, c T) {
	for i, v := range x {
		dst[i] = v + c
	}
}

func mulScalar[T Float](dst, x []T, c T) {
	for i, v := range x {
		dst[i] = v * c
	}
}

// sqrt compiles to one instruction for both types.
func sqrt[T Float](v T) T { return T(math.Sqrt(float64(v))) }
