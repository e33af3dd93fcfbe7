package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	gtensor "gorgonia.org/tensor"
)

func TestMatMulAgainstLoops(t *testing.T) {
	r := newRig(t, 256<<20)
	random := rand.New(rand.NewPCG(7, 8))
	sizes := []int{0, 1, 2, 3, 10, 12, 24, 31, 33, 65, 130}
	for range 150 {
		m, n, k := sizes[random.IntN(len(sizes))], sizes[random.IntN(len(sizes))], sizes[random.IntN(len(sizes))]
		a, b := randomData(random, []int{m, k}), randomData(random, []int{k, n})
		want := make([]float64, m*n)
		for i := range m {
			for j := range n {
				for l := range k {
					want[i*n+j] += a[i*k+l] * b[l*n+j]
				}
			}
		}
		for form := range 4 {
			ctx, scope := Scope(r.ctx)
			transA, transB := form&1 != 0, form&2 != 0
			x, err := FromSlice(ctx, r.Runtime, a, m, k)
			require.NoError(t, err)
			y, err := FromSlice(ctx, r.Runtime, b, k, n)
			require.NoError(t, err)
			if transA {
				x, err = r.Transpose(ctx, x)
				require.NoError(t, err)
			}
			if transB {
				y, err = r.Transpose(ctx, y)
				require.NoError(t, err)
			}
			// What the result's memory held before must not matter.
			dirty, err := r.Full(ctx, 1e300, gtensor.Float64, m, n)
			require.NoError(t, err)
			require.NoError(t, dirty.Release())
			z, err := r.MatMul(ctx, x, y, transA, transB)
			got := get[float64](r, z, err)
			require.InDeltaSlice(t, append(want, 0), append(got, 0), 1e-9, "%dx%dx%d, transposed %v %v", m, n, k, transA, transB)
			require.Equal(t, []int{m, n}, []int(z.Shape()))
			require.NoError(t, scope.Close())
		}
	}
}

func TestMatMulWithALongInnerDimension(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	const k = 5000 // more than one tile
	ones, err := r.Full(r.ctx, 1, gtensor.Float32, 3, k)
	require.NoError(t, err)
	y, err := r.MatMul(r.ctx, ones, ones, false, true)
	for _, v := range get[float32](r, y, err) {
		require.Equal(t, float32(k), v)
	}
}

func TestAddBias(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, b := put(r, []float64{1, -5, 3, 4}, 2, 2), put(r, []float64{1, 2})
	y, err := r.AddBias(r.ctx, x, b)
	require.Equal(t, []float64{2, -3, 4, 6}, get[float64](r, y, err))
	require.NoError(t, r.AddBiasReLUInPlace(r.ctx, x, b))
	require.Equal(t, []float64{2, 0, 4, 6}, get[float64](r, x, nil))
	require.NoError(t, r.AddBiasInPlace(r.ctx, x, b))
	require.Equal(t, []float64{3, 2, 5, 8}, get[float64](r, x, nil))
}
