package gemm

import (
	"fmt"
	"testing"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// BenchmarkTile measures only the micro-kernel, on panels in the first-level cache, which is the
// upper limit for products.
func BenchmarkTile(b *testing.B) {
	b.Run("float32", benchmarkTile[float32])
	b.Run("float64", benchmarkTile[float64])
}

func benchmarkTile[T Float](b *testing.B) {
	for _, l := range simd.Available() {
		restore := simd.Use(l)
		mc := machineOf[T]()
		restore()
		for _, rows := range []int{mc.rows, mc.rows - 1, ceil(mc.rows, 2), 1} {
			b.Run(fmt.Sprintf("%v/%d", l, rows), func(b *testing.B) {
				const depth = 128
				x, y, z := make([]T, rows*depth), make([]T, mc.columns*depth), make([]T, rows*mc.columns)
				for b.Loop() {
					tile(mc, rows, mc.columns, &z[0], mc.columns, &x[0], 1, rows, &y[0], mc.columns, depth, false)
				}
				b.ReportMetric(2*float64(rows*mc.columns*depth)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}
