package tensor

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/gpuop"
)

// BenchmarkOwnProduct is a product of a dense layer, 32 times in a captured graph: y = x wᵀ with
// its bias (NT), dx = dy w (NN), and dw = dyᵀ x with the sums of dy's columns (TN). It uses the
// library (and what follows it) and the kernels of each tiling, with the inner dimension cut into
// so many parts. ns/op is for one product.
func BenchmarkOwnProduct(b *testing.B) {
	for _, s := range []struct {
		form    string
		m, n, k int
	}{
		{"NT", 128, 192, 64}, {"NT", 128, 64, 64}, {"NT", 128, 256, 64}, {"NT", 128, 64, 256}, {"NT", 128, 65, 64},
		{"NN", 128, 64, 192}, {"NN", 128, 64, 64}, {"NN", 128, 64, 256}, {"NN", 128, 256, 64}, {"NN", 128, 64, 65},
		{"TN", 192, 64, 128}, {"TN", 64, 64, 128}, {"TN", 256, 64, 128}, {"TN", 64, 256, 128}, {"TN", 65, 64, 128},
		{"NT", 128, 512, 784}, {"NT", 128, 512, 512}, {"NT", 128, 10, 512}, {"NN", 128, 512, 512}, {"NN", 128, 512, 10},
		{"TN", 512, 784, 128}, {"TN", 512, 512, 128}, {"TN", 10, 512, 128},
		{"NT", 1024, 512, 784}, {"NT", 1024, 512, 512}, {"NT", 1024, 10, 512}, {"NN", 1024, 512, 512}, {"NN", 1024, 512, 10},
		{"TN", 512, 784, 1024}, {"TN", 512, 512, 1024}, {"TN", 10, 512, 1024},
		{"NT", 256, 768, 256}, {"NT", 256, 1024, 256}, {"NT", 2048, 128, 128}, {"NT", 512, 512, 2048}, {"NT", 64, 1024, 1024}, {"NT", 100, 1000, 300}, {"NT", 1000, 500, 300},
		{"NN", 256, 256, 1024}, {"NN", 256, 768, 256}, {"NN", 2048, 128, 128}, {"NN", 1024, 784, 512}, {"NN", 1001, 501, 301},
		{"TN", 1024, 256, 256}, {"TN", 256, 768, 256}, {"TN", 128, 128, 2048}, {"TN", 768, 768, 512}, {"TN", 501, 301, 1001},
	} {
		name := fmt.Sprintf("%s/%dx%dx%d/", s.form, s.m, s.n, s.k)
		b.Run(name+"library", func(b *testing.B) {
			defer gpuop.Force(gpuop.Nowhere, nil)()
			benchmarkProduct(b, s.form, s.m, s.n, s.k)
		})
		for w, called := range map[gpuop.Way]string{gpuop.OwnNarrow: "narrow", gpuop.OwnWide: "wide"} {
			all := w.Tiles(s.m, s.n)
			for _, n := range []int{1, 2, 4, 8, 16} {
				if n > 1 && (n > w.Steps(s.k) || all > gpuop.MaxCut || all*n > 1024) {
					continue
				}
				b.Run(fmt.Sprint(name, called, "-", n), func(b *testing.B) {
					defer gpuop.Force(w, func(int, int) int { return n })()
					benchmarkProduct(b, s.form, s.m, s.n, s.k)
				})
			}
		}
	}
}

func benchmarkProduct(b *testing.B, form string, m, n, k int) {
	const times = 32
	r := newRig(b, 256<<20).scoped()
	made := func(shape ...int) *Tensor {
		x, err := r.Full(r.ctx, 0.5, Float32, shape...)
		require.NoError(b, err)
		return x
	}
	var once func(ctx context.Context) error
	released := func(err error, ts ...*Tensor) error {
		for _, t := range ts {
			if err == nil {
				err = t.Release()
			}
		}
		return err
	}
	switch form {
	case "NT":
		x, w, bias := made(m, k), made(n, k), made(n)
		once = func(ctx context.Context) error {
			y, err := r.Linear(ctx, x, w, bias)
			return released(err, y)
		}
	case "NN":
		x, y := made(m, k), made(k, n)
		once = func(ctx context.Context) error {
			z, err := r.MatMul(ctx, x, y)
			return released(err, z)
		}
	default:
		dy, x := made(k, m), made(k, n)
		once = func(ctx context.Context) error {
			dw, db, err := r.LinearWeightGrad(ctx, dy, x, true)
			return released(err, dw, db)
		}
	}
	step := func(ctx context.Context) error {
		for range times {
			if err := once(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(b, step(r.ctx))
	require.NoError(b, r.Synchronize(r.ctx))
	graph, err := r.Capture(r.ctx, step)
	require.NoError(b, err)
	defer func() { require.NoError(b, graph.Close()) }()
	require.NoError(b, graph.Replay(r.ctx))
	require.NoError(b, r.Synchronize(r.ctx))
	b.ResetTimer()
	for i := 0; i < b.N; i += times {
		require.NoError(b, graph.Replay(r.ctx))
	}
	require.NoError(b, r.Synchronize(r.ctx))
}
