package tensor

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkMatMul has one product (m, k) by (k, n), its shape mxkxn, in all four transpositions:
// the product of a dense layer 784→512 at batch 128, its gradients with the same number of
// multiply-adds, and two squares. It waits for each product.
func BenchmarkMatMul(b *testing.B) { benchmarkMatMul(b, 1) }

// BenchmarkMatMulQueue queues 16 products and waits for the last one.
func BenchmarkMatMulQueue(b *testing.B) { benchmarkMatMul(b, 16) }

func benchmarkMatMul(b *testing.B, queued int) {
	for _, form := range []string{"NN", "NT", "TN", "TT"} {
		for _, s := range [][3]int{{128, 784, 512}, {512, 512, 512}, {2048, 2048, 2048}} {
			m, k, n := s[0], s[1], s[2]
			b.Run(fmt.Sprintf("%s/%dx%dx%d", form, m, k, n), func(b *testing.B) {
				left, right, option := []int{m, k}, []int{k, n}, MatMulOption(0)
				if form[0] == 'T' {
					left, option = []int{k, m}, TransA
				}
				if form[1] == 'T' {
					right, option = []int{n, k}, option|TransB
				}
				r := newRig(b, 256<<20).scoped()
				x, err := r.Full(r.ctx, 0.5, Float32, left...)
				require.NoError(b, err)
				y, err := r.Full(r.ctx, 0.5, Float32, right...)
				require.NoError(b, err)
				products := func() {
					for range queued {
						z, err := r.MatMul(r.ctx, x, y, option)
						require.NoError(b, err)
						require.NoError(b, z.Release())
					}
					require.NoError(b, r.Synchronize(r.ctx))
				}
				products() // the first ones touch new memory
				b.ReportAllocs()
				for b.Loop() {
					products()
				}
				b.ReportMetric(2*float64(queued)*float64(m)*float64(k)*float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}

// BenchmarkOperation measures the overhead of an operation that computes almost nothing. Operations
// on 16 floats are queued one after the other, while the stream's goroutine runs them, with one
// Synchronize at the end. Results are released as soon as the operation is queued.
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
				// require's calls of Helper would cost more than the operation.
				if err := c.operation(r.Runtime, x); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, r.Synchronize(r.ctx))
		})
	}
}

// BenchmarkConv measures a convolution, its gradients, and all three, with a Synchronize.
func BenchmarkConv(b *testing.B) {
	r := newRig(b, 256<<20).scoped()
	full := func(shape ...int) *Tensor {
		x, err := r.Full(r.ctx, 0.5, Float32, shape...)
		require.NoError(b, err)
		return x
	}
	x, w, bias, dy := full(64, 32, 26, 26), full(64, 32, 3, 3), full(64), full(64, 64, 24, 24)
	steps := map[string]func() (*Tensor, error){
		"forward":         func() (*Tensor, error) { return r.Conv2d(r.ctx, x, w, bias, ConvConfig{}) },
		"input-gradient":  func() (*Tensor, error) { return r.ConvInputGrad(r.ctx, dy, w, x.Shape(), ConvConfig{}) },
		"weight-gradient": func() (*Tensor, error) { return r.ConvWeightGrad(r.ctx, dy, x, w.Shape(), ConvConfig{}) },
	}
	for _, names := range [][]string{{"forward"}, {"input-gradient"}, {"weight-gradient"}, {"forward", "input-gradient", "weight-gradient"}} {
		name := names[0]
		if len(names) > 1 {
			name = "all"
		}
		b.Run("3x3/64x32x26x26to64/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, step := range names {
					y, err := steps[step]()
					require.NoError(b, err)
					require.NoError(b, y.Release())
				}
				require.NoError(b, r.Synchronize(r.ctx))
			}
			b.ReportMetric(float64(len(names))*2*64*64*576*288*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}
