package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRows measures operations along few and many rows and by an index. Operations are queued
// one after the other, with one Synchronize at the end.
func BenchmarkRows(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	normal := func(r *rig, shape ...int) *Tensor {
		data := make([]float32, elements(shape))
		for i := range data {
			data[i] = float32(random.NormFloat64())
		}
		return put(r, data, shape...)
	}
	index := func(r *rig, below int, shape ...int) *Tensor {
		data := make([]int64, elements(shape))
		for i := range data {
			data[i] = random.Int64N(int64(below))
		}
		return put(r, data, shape...)
	}
	const m = 1_000_000
	all := []int{1000, 1000}
	type operation = func(r *rig, x, index, src *Tensor) (a, b *Tensor, err error)
	one := func(f func(r *rig, x, index, src *Tensor) (*Tensor, error)) operation {
		return func(r *rig, x, index, src *Tensor) (a, b *Tensor, err error) {
			a, err = f(r, x, index, src)
			return a, nil, err
		}
	}
	sort := func(r *rig, x, _, _ *Tensor) (a, b *Tensor, err error) { return r.Sort(r.ctx, x, -1, false) }
	top := func(k int) operation {
		return func(r *rig, x, _, _ *Tensor) (a, b *Tensor, err error) { return r.TopK(r.ctx, x, k, -1, true) }
	}
	cumSum := one(func(r *rig, x, _, _ *Tensor) (*Tensor, error) { return r.CumSum(r.ctx, x, -1) })
	argMax := one(func(r *rig, x, _, _ *Tensor) (*Tensor, error) { return r.ArgMax(r.ctx, x) })
	scatter := one(func(r *rig, x, index, src *Tensor) (*Tensor, error) { return r.Scatter(r.ctx, x, 0, index, src) })
	scatterAdd := one(func(r *rig, x, index, src *Tensor) (*Tensor, error) { return r.ScatterAdd(r.ctx, x, 0, index, src) })
	for _, c := range []struct {
		name  string
		shape []int // of x
		index []int // of the index and the source
		op    operation
		below int // the limit of the index, if it is not the first dimension of x
	}{
		{"sort/1x1000000", []int{1, m}, nil, sort, 0},
		{"sort/1024x1024", []int{1024, 1024}, nil, sort, 0},
		{"topk50/8x50257", []int{8, 50257}, nil, top(50), 0},
		{"topk5/1024x1000", []int{1024, 1000}, nil, top(5), 0},
		{"topk1000/1x1000000", []int{1, m}, nil, top(1000), 0},
		{"cumsum/1x1000000", []int{1, m}, nil, cumSum, 0},
		{"cumsum/1024x1024", []int{1024, 1024}, nil, cumSum, 0},
		{"argmax/1x1000000", []int{1, m}, nil, argMax, 0},
		{"argmax/8x50257", []int{8, 50257}, nil, argMax, 0},
		{"amax/1024x1024", []int{1024, 1024}, nil, one(func(r *rig, x, _, _ *Tensor) (*Tensor, error) { return r.Amax(r.ctx, x) }), 0},
		{"gather/1000x1000", all, all, one(func(r *rig, x, index, _ *Tensor) (*Tensor, error) { return r.Gather(r.ctx, x, 0, index) }), 0},
		{"scatter/1000x1000", all, all, scatter, 0},
		{"scatter/65536x1", []int{1000, 1}, []int{65536, 1}, scatter, 0},
		{"scatteradd/1000x1000", all, all, scatterAdd, 0},
		{"scatteradd/65536x1", []int{1000, 1}, []int{65536, 1}, scatterAdd, 0},
		{"embeddinggrad/8192of50257x768", []int{8192, 768}, []int{8192}, one(func(r *rig, dy, index, _ *Tensor) (*Tensor, error) {
			return r.EmbeddingGrad(r.ctx, dy, index, 50257, EmbeddingConfig{})
		}), 50257},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, 4<<30).scoped()
			x, at, src := normal(r, c.shape...), index(r, max(c.shape[0], c.below), c.index...), normal(r, c.index...)
			b.ResetTimer()
			for range b.N {
				y, z, err := c.op(r, x, at, src)
				if err != nil {
					b.Fatal(err)
				}
				require.NoError(b, y.Release())
				if z != nil {
					require.NoError(b, z.Release())
				}
			}
			require.NoError(b, r.Synchronize(r.ctx))
		})
	}
}
