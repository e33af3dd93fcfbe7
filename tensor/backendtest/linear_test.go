package backendtest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/gpuop"
)

// TestOwnProductsAgainstReference runs products of all sizes by the kernels of each tiling, with
// the inner dimension cut into one to five parts.
func TestOwnProductsAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(7, 0))
	cut := func(tiles, steps int) int {
		if tiles > gpuop.MaxCut {
			return 1
		}
		return 1 + (7*tiles+steps)%min(steps, 5)
	}
	n := caseCount(4)
	if r.brief() {
		n = 2 // the host has no tilings: these are the products of TestLinearAgainstReference
	}
	for i := range n {
		for _, w := range []gpuop.Way{gpuop.OwnNarrow, gpuop.OwnWide} {
			func() {
				defer gpuop.Force(w, cut)()
				for _, op := range append(linearOps[float32](), productOps[float32]()[0]) {
					runTrial(t, r, random, op.ofKind(numbers(i)%kinds))
				}
			}()
		}
	}
}

// TestLinearAgainstReference uses whichever product the device selects for a size.
func TestLinearAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(8, 0))
	n := caseCount(2)
	if r.brief() {
		n = int(kinds)
	}
	for i := range n {
		kind := numbers(i) % kinds
		singles, doubles := linearOps[float32](), linearOps[float64]()
		for j := range singles {
			runTrial(t, r, random, singles[j].ofKind(kind))
			runTrial(t, r, random, doubles[j].ofKind(kind))
		}
	}
}

// TestLinearInputGradRefuses shapes that do not belong to a layer.
func TestLinearInputGradRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	dy, w, y := put(r, make([]float32, 6), 2, 3), put(r, make([]float32, 12), 3, 4), put(r, make([]float32, 8), 2, 4)
	for _, bad := range [][3]*tensor.Tensor{{dy, y, nil}, {dy, w, dy}, {dy, put(r, make([]float32, 3), 3), nil}, {put(r, make([]float32, 1)), w, nil}, {dy, put(r, make([]float64, 12), 3, 4), nil}, {nil, w, nil}} {
		_, _, err := r.LinearInputGrad(r.ctx, bad[0], bad[1], bad[2], 4)
		require.Error(t, err)
	}
	dx, _, err := r.LinearInputGrad(r.ctx, dy, w, y, 4)
	require.NoError(t, err)
	require.Equal(t, []int{2, 4}, []int(dx.Shape()))
	none, _, err := r.LinearInputGrad(r.ctx, put(r, []float32{}, 0, 3), w, put(r, []float32{}, 0, 4), 4)
	require.NoError(t, err)
	require.Equal(t, []int{0, 4}, []int(none.Shape()))
}

// TestLinearWeightGradOfSequences: all leading dimensions are rows, and without them there is one
// row.
func TestLinearWeightGradOfSequences(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	dy, err := tensor.FromSlice(r.ctx, r.Runtime, []float64{1, 2, 3, 4, 5, 6}, 1, 3, 2)
	require.NoError(t, err)
	x, err := tensor.FromSlice(r.ctx, r.Runtime, []float64{1, 0, 2}, 1, 3, 1)
	require.NoError(t, err)
	for _, ofBias := range []bool{true, false} {
		dw, db, err := r.LinearWeightGrad(r.ctx, dy, x, ofBias)
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int(dw.Shape()))
		got, err := tensor.ToSlice[float64](r.ctx, dw, nil)
		require.NoError(t, err)
		require.Equal(t, []float64{11, 14}, got)
		if !ofBias {
			require.Nil(t, db)
			continue
		}
		got, err = tensor.ToSlice[float64](r.ctx, db, nil)
		require.NoError(t, err)
		require.Equal(t, []float64{9, 12}, got)
	}
	row, err := tensor.FromSlice(r.ctx, r.Runtime, []float64{3, 4}, 2)
	require.NoError(t, err)
	one, err := tensor.FromSlice(r.ctx, r.Runtime, []float64{2}, 1)
	require.NoError(t, err)
	dw, db, err := r.LinearWeightGrad(r.ctx, row, one, true)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int(dw.Shape()))
	require.Equal(t, []int{2}, []int(db.Shape()))
	for _, bad := range [][2]*tensor.Tensor{{dy, one}, {row, nil}} {
		_, _, err := r.LinearWeightGrad(r.ctx, bad[0], bad[1], true)
		require.Error(t, err)
	}
}
