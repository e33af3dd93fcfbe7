package tensor

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchOperation times an operation with one result, including the wait for its end.
func benchOperation(b *testing.B, r *rig, bytes int, f func() (*Tensor, error)) {
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	for b.Loop() {
		y, err := f()
		require.NoError(b, err)
		require.NoError(b, y.Release())
		require.NoError(b, r.Synchronize(r.ctx))
	}
}

// BenchmarkExp, BenchmarkSoftmax and BenchmarkAdam measure the speed of the host device, besides
// products and steps.
func BenchmarkExp(b *testing.B) {
	b.Run("1000000", func(b *testing.B) {
		r := newRig(b, 64<<20).scoped()
		x := put(r, spread[float32](1_000_000, -10, 10))
		benchOperation(b, r, 8_000_000, func() (*Tensor, error) { return r.Exp(r.ctx, x) })
	})
}

func BenchmarkSoftmax(b *testing.B) {
	for _, s := range [][2]int{{128, 1000}, {4096, 32}, {128, 10}} {
		b.Run(fmt.Sprintf("%dx%d", s[0], s[1]), func(b *testing.B) {
			r := newRig(b, 64<<20).scoped()
			x := put(r, spread[float32](s[0]*s[1], -10, 10), s[:]...)
			benchOperation(b, r, 8*s[0]*s[1], func() (*Tensor, error) { return r.Softmax(r.ctx, x) })
		})
	}
}

func BenchmarkAdam(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, 64<<20).scoped()
			of := func() *Tensor { return put(r, spread[float32](n, 0.5, 1)) }
			u := Update[Adam]{Rule: Adam{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 3}, P: of(), G: of(), State: [3]*Tensor{of(), of()}}
			b.SetBytes(int64(28 * n))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Step(context.Background(), r.Runtime, []Update[Adam]{u}))
				require.NoError(b, r.Synchronize(r.ctx))
			}
		})
	}
}
