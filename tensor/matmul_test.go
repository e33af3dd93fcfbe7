package tensor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func TestMatMulWithALongInnerDimension(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	const k = 5000 // more than one tile
	ones, err := r.Full(r.ctx, 1, Float32, 3, k)
	require.NoError(t, err)
	y, err := r.MatMul(r.ctx, ones, ones, TransB)
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

// transposing are the options that transpose the first factor, the second, both or none.
func transposing(first, second bool) (options []MatMulOption) {
	if first {
		options = append(options, TransA)
	}
	if second {
		options = append(options, TransB)
	}
	return options
}

// TestMatMulOptions may be given one by one, joined or twice; other bits are an error.
func TestMatMulOptions(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	a, b := put(r, []float64{1, 2, 3, 4, 5, 6}, 3, 2), put(r, []float64{1, 0, 2, 0, 1, 3}, 2, 3)
	want := []float64{11, 18, 14, 22}
	for _, options := range [][]MatMulOption{{TransA, TransB}, {TransA | TransB}, {0, TransB, TransA, TransA}} {
		y, err := r.MatMul(r.ctx, a, b, options...)
		require.Equal(t, want, get[float64](r, y, err), "%v", options)
	}
	y, err := r.MatMul(r.ctx, a, b)
	require.NoError(t, err)
	require.Equal(t, Shape{3, 3}, y.Shape())
	for _, bad := range []MatMulOption{4, 255} {
		_, err = r.MatMul(r.ctx, a, b, TransA, bad)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "want TransA, TransB or both")
	}
}

// Products of few rows are added up in parts of the inner dimension.
func TestProductOfFewLongRows(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const inner = 1000
	ones := make([]float64, 3*inner)
	for i := range ones {
		ones[i] = 1
	}
	y, err := r.MatMul(r.ctx, put(r, ones[:2*inner], 2, inner), put(r, ones, inner, 3))
	require.Equal(t, []float64{inner, inner, inner, inner, inner, inner}, get[float64](r, y, err))
}

// All ways in which two batches broadcast, of plain and transposed factors.
func TestMatMulOfBatches(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	batches := [][]int{{}, {1}, {2}, {3, 1}, {1, 2}, {3, 2}, {2, 1, 2}}
	for _, batchA := range batches {
		for _, batchB := range batches {
			batch, err := broadcastShape("", batchA, batchB)
			if err != nil {
				continue
			}
			for form := range 8 {
				transA, transB := form&1 != 0, form&2 != 0
				m, k, n := 2, 3, 4
				if form&4 != 0 {
					m, k, n = 5, 1, 2
				}
				a, b := append(slices.Clone(batchA), m, k), append(slices.Clone(batchB), k, n)
				var options []MatMulOption
				if transA {
					a, options = append(slices.Clone(batchA), k, m), append(options, TransA)
				}
				if transB {
					b, options = append(slices.Clone(batchB), n, k), append(options, TransB)
				}
				left, right := spread[float64](elements(a), -1, 1), spread[float64](elements(b), 0, 3)
				y, err := r.MatMul(r.ctx, put(r, left, a...), put(r, right, b...), options...)
				want := reference.BatchMatMul(arrayOf(a, left), arrayOf(b, right), batch, transA, transB)
				require.InDeltaSlice(t, want.Data, get[float64](r, y, err), 1e-14, "%v times %v, form %d", a, b, form)
				require.Equal(t, want.Shape, []int(y.Shape()))
			}
		}
	}
}
