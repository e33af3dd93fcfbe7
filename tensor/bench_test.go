package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"
)

// BenchmarkMatMul has the products of a dense layer 784→512 at batch 128: forward, and backward for the
// weights and for the argument.
func BenchmarkMatMul(b *testing.B) {
	for _, c := range []struct {
		name   string
		a, b   [2]int
		option MatMulOption
	}{
		{"NT/128x512x784", [2]int{128, 784}, [2]int{512, 784}, TransB},
		{"TN/512x784x128", [2]int{128, 512}, [2]int{128, 784}, TransA},
		{"NN/128x784x512", [2]int{128, 512}, [2]int{512, 784}, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, 64<<20).scoped()
			x, err := r.Full(r.ctx, 0.5, gtensor.Float32, c.a[:]...)
			require.NoError(b, err)
			y, err := r.Full(r.ctx, 0.5, gtensor.Float32, c.b[:]...)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				z, err := r.MatMul(r.ctx, x, y, c.option)
				require.NoError(b, err)
				require.NoError(b, z.Release())
				require.NoError(b, r.Synchronize(r.ctx))
			}
			b.ReportMetric(2*128*512*784*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}

// BenchmarkOperation is what an operation costs the host, next to nothing being computed.
func BenchmarkOperation(b *testing.B) {
	for _, leaks := range []bool{false, true} {
		name, options := "Add", []Option(nil)
		if leaks {
			name, options = "Add/OnLeak", []Option{OnLeak(func(Leak) {})}
		}
		b.Run(name, func(b *testing.B) {
			r := newRig(b, 64<<20, options...)
			x := put(r, []float32{1})
			defer x.Release()
			b.ReportAllocs()
			for b.Loop() {
				y, err := r.Add(context.Background(), x, x)
				require.NoError(b, err)
				require.NoError(b, y.Release())
			}
		})
	}
}
