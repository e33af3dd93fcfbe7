package kernel

import "math/bits"

// Convert sets dst[i] = x[i] as another type.
func Convert[D Float, S float32 | float64 | int32 | int64 | uint8](dst []D, x []S) {
	split(len(dst), grainCheap, func(lo, hi int) {
		out, in := any(dst[lo:hi]), any(x[lo:hi])
		if out, ok := out.([]float32); ok && bits.UintSize == 32 {
			if in, ok := in.([]int64); ok {
				for i, v := range in {
					out[i] = nearest(v)
				}
				return
			}
		}
		for i, v := range x[lo:hi] {
			dst[lo+i] = D(v)
		}
	})
}

// ConvertBy sets dst[i] = f(x[i]).
func ConvertBy[D, S any](dst []D, x []S, f func(S) D) {
	split(len(dst), grainCheap, func(lo, hi int) {
		out := dst[lo:hi]
		for i, v := range x[lo:hi] {
			out[i] = f(v)
		}
	})
}

// nearest returns the nearest float32, which Go's own conversion misses on 386. If v does not fit
// into a float64, it is rounded to an odd number first, so that the result is not rounded twice.
func nearest(v int64) float32 {
	if w := v &^ (1<<11 - 1); w != v && (v > 1<<53 || v < -1<<53) {
		v = w | 1<<11
	}
	return float32(float64(v))
}
