//go:build unix

package simd

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzFunctions compares functions of any float32 with the functions of float64.
func FuzzFunctions(f *testing.F) {
	for _, x := range special[float64]() {
		f.Add(math.Float64bits(x))
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		for _, l := range Available() {
			if l < AVX2 {
				continue
			}
			restore := Use(l)
			for op, of := range quick {
				x, y := math.Float32frombits(uint32(bits)), float32(0)
				UnaryOf[float32](op)(&y, &x, 1, 0, 0)
				require.LessOrEqual(t, ulps(y, of(float64(x))), approximations[op].single, "function %d of %v with %v", op, x, l)
				wide, result := math.Float64frombits(bits), 0.0
				UnaryOf[float64](op)(&result, &wide, 1, 0, 0)
				if op != SiLU {
					require.LessOrEqual(t, ulps(result, approximations[op].of(wide)), approximations[op].double+0.5, "function %d of %v with %v", op, wide, l)
				}
			}
			restore()
		}
	})
}
