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

// BenchmarkOperation is what an operation costs, next to nothing being computed: operations on 16 floats queued one after
// the other, the stream's goroutine working on them meanwhile, and one Synchronize at the end. Results are released as soon as
// the operation is queued.
//
//	Add         a new tensor from two
//	AddOnLeak   the same, with the call stack of each tensor
//	AddInPlace  no tensor is made: the launch alone
func BenchmarkOperation(b *testing.B) {
	add := func(rt *Runtime, x *Tensor) error {
		y, err := rt.Add(context.Background(), x, x)
		if err != nil {
			return err
		}
		return y.Release()
	}
	addInPlace := func(rt *Runtime, x *Tensor) error { return rt.AddInPlace(context.Background(), x, x) }
	for _, c := range []struct {
		name      string
		operation func(*Runtime, *Tensor) error
		options   []Option
	}{
		{"Add", add, nil},
		{"AddOnLeak", add, []Option{OnLeak(func(Leak) {})}},
		{"AddInPlace", addInPlace, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, 64<<20, c.options...)
			x := put(r, make([]float32, 16))
			defer x.Release()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N { // not b.Loop, which does not time what comes after it
				if err := c.operation(r.Runtime, x); err != nil { // require's calls of Helper would cost more than the operation
					b.Fatal(err)
				}
			}
			require.NoError(b, r.Synchronize(r.ctx))
		})
	}
}
