package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func randomData(r *rand.Rand, shape []int) []float64 {
	data := make([]float64, elements(shape))
	for i := range data {
		data[i] = r.Float64()*4 + 0.25
	}
	return data
}

func TestBroadcastToIsUndoneBySumTo(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, 2, 3}, 3, 1)
	y, err := r.BroadcastTo(r.ctx, x, 2, 3, 4)
	require.NoError(t, err)
	z, err := r.SumTo(r.ctx, y, 3, 1)
	assert.Equal(t, []float32{8, 16, 24}, get[float32](r, z, err))
}

// A column is read with a stride of 0, even if it is long enough to be read as a row.
func TestAddColumn(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	a, b := put(r, make([]float64, 12), 4, 3), put(r, []float64{1, 2, 3, 4}, 4, 1)
	y, err := r.Add(r.ctx, a, b)
	assert.Equal(t, []float64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}, get[float64](r, y, err))
	y, err = r.Add(r.ctx, b, a)
	assert.Equal(t, []float64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}, get[float64](r, y, err))
}

// The gradient of a square is finite even if 2*dy overflows.
func TestSquareGradOfLargeNumbers(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	y, err := r.ApplyGrad(r.ctx, fn.Square, nil, put(r, []float64{1.5e308}), put(r, []float64{0.25}))
	assert.Equal(t, []float64{0.75e308}, get[float64](r, y, err))
	z, err := r.ApplyGrad(r.ctx, fn.Square, nil, put(r, []float32{3e38}), put(r, []float32{0.25}))
	assert.Equal(t, []float32{1.5e38}, get[float32](r, z, err))
}

func TestLargeArraysAreSplitRight(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	const n = 300_001 // over every grain, and not a multiple of anything
	a, b := make([]float32, n), make([]float32, n)
	for i := range a {
		a[i], b[i] = float32(i), float32(2*i)
	}
	y, err := r.Add(r.ctx, put(r, a), put(r, b))
	for i, v := range get[float32](r, y, err) {
		if v != a[i]+b[i] {
			require.Equal(t, a[i]+b[i], v, "element %d", i)
		}
	}
	z, err := r.Sum(r.ctx, put(r, make([]float64, n)))
	assert.Equal(t, []float64{0}, get[float64](r, z, err))
}

// TestRareArguments has arguments that are rare in random cases.
func TestRareArguments(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	y, err := r.PowScalar(r.ctx, put(r, []float64{0, -1.5, 1e-200, 3, math.Inf(-1)}), 2)
	assert.Equal(t, []float64{0, 2.25, 0, 9, math.Inf(1)}, get[float64](r, y, err))
	y, err = r.PowScalar(r.ctx, put(r, []float64{-0.1, math.Inf(1)}), 1)
	assert.Equal(t, []float64{-0.1, math.Inf(1)}, get[float64](r, y, err))
	one, none, other := put(r, []float64{0, 3}), put(r, []float64{0, 0}), put(r, []float64{-0.5, 1})
	y, err = r.ClipNorm(r.ctx, math.Inf(1), 0, one, none, other)
	assert.Equal(t, []float64{2}, get[float64](r, y, err), "tensors that are not 0")
	y, err = r.GatherGrad(r.ctx, put(r, []float32{}, 0, 2), 0, put(r, []int32{}, 0, 2), 3, 2)
	assert.Equal(t, make([]float32, 6), get[float32](r, y, err))
	x := put(r, []float32{1, 2}, 1, 2)
	_, _, err = r.BatchNorm(r.ctx, x, nil, nil, BatchNormConfig{Training: true})
	assert.ErrorIs(t, err, ErrShape, "one value of each channel")
}

func TestConvert(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	y, err := r.Convert(r.ctx, put(r, []uint8{0, 128, 255}), Float32)
	assert.Equal(t, []float32{0, 128, 255}, get[float32](r, y, err))
	y, err = r.Convert(r.ctx, put(r, []int64{-1, 1 << 40}), Float64)
	assert.Equal(t, []float64{-1, 1 << 40}, get[float64](r, y, err))
	_, err = r.Convert(r.ctx, y, Int32)
	assert.ErrorIs(t, err, ErrDtype)
}
