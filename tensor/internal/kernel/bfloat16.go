package kernel

import "github.com/cistern-ml/cistern/internal/bfloat16"

// Widen sets dst[i] to x[i]. The conversion to float32 is exact.
func Widen[D Float](dst []D, x []bfloat16.Number) {
	split(len(dst), grainCheap, func(lo, hi int) {
		out := dst[lo:hi]
		for i, v := range x[lo:hi] {
			out[i] = D(v.Float32())
		}
	})
}

// Narrow sets dst[i] to x[i] rounded to the nearest. Other types than float32 are rounded to
// float32 first, as in PyTorch.
func Narrow[S float32 | float64 | int32 | int64 | uint8](dst []bfloat16.Number, x []S) {
	split(len(dst), grainCheap, func(lo, hi int) {
		out := dst[lo:hi]
		for i, v := range x[lo:hi] {
			out[i] = bfloat16.Round(float32(v))
		}
	})
}
