package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	gtensor "gorgonia.org/tensor"
)

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
