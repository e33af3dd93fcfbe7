package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/gpuop"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestOwnProductsAgainstReference runs products of all sizes by the kernels of each tiling, with the inner dimension cut into one to five parts.
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
	if brief() {
		n = 2 // the host has no tilings: these are the products of TestLinearAgainstReference
	}
	for i := range n {
		for _, w := range []gpuop.Way{gpuop.OwnNarrow, gpuop.OwnWide} {
			restore := gpuop.Force(w, cut)
			for _, op := range append(linearOps[float32](), productOps[float32]()[0]) {
				runTrial(t, r, random, op.ofKind(numbers(i)%kinds))
			}
			restore()
		}
	}
}

// TestLinearAgainstReference, by whatever the device takes for a product of the size.
func TestLinearAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(8, 0))
	n := caseCount(2)
	if brief() {
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

// linearOps are a layer's, of products as large as a GPU's tiles and larger.
func linearOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"Linear", linearTrial[T]}, {"LinearWeightGrad", weightGradTrial[T]},
		{"LinearInputGrad", inputGradTrial[T]},
	}
}

// sized is a dimension: of a part of a tile, of several, or of many stages.
func (c *trial[T]) sized() int {
	switch c.rand.IntN(4) {
	case 0:
		return 4 * (1 + c.rand.IntN(40))
	case 1:
		return 1 + c.rand.IntN(400)
	}
	return 1 + c.rand.IntN(40)
}

func linearTrial[T kernel.Float](c *trial[T]) {
	if c.kind == special {
		c.kind = ordinary
	}
	rows, in, out := c.sized(), c.sized(), c.sized()
	x, w, b := c.operand(rows, in), c.operand(out, in), c.operand(out)
	relu := c.rand.IntN(2) == 0
	want := reference.MatMul(x.array(), w.array(), false, true)
	bias := b.array()
	for i := range want.Data {
		v := bias.Data[i%out]
		want.Data[i] += v
		want.Size[i] += max(v, -v)
		if relu {
			want.Data[i] = max(0, want.Data[i])
		}
	}
	c.dirty()
	f := c.r.Linear
	if relu {
		f = c.r.LinearReLU
	}
	y, err := f(c.ctx, x.Tensor, w.Tensor, b.Tensor)
	tol := tolerance{terms: float64(in+2) * unit[T](), inside: 1}
	if _, library := c.r.dev.(device.MatrixMultiplier); c.half && library {
		tol.terms += 0x1p-8 // cuBLASLt was seen to round some products to bfloat16 before it adds the bias
	}
	c.gave("Linear", y, err, want, tol)
	x.unchanged("Linear")
}

func weightGradTrial[T kernel.Float](c *trial[T]) {
	rows, in, out := c.sized(), c.sized(), c.sized()
	dy, x := c.operand(rows, out), c.operand(rows, in)
	c.dirty()
	dw, db, err := c.r.LinearWeightGrad(c.ctx, dy.Tensor, x.Tensor, true)
	c.gave("LinearWeightGrad", dw, err, reference.MatMul(dy.array(), x.array(), true, false), tolerance{terms: float64(rows+1) * unit[T](), inside: 1})
	want := reference.SumTo(dy.array(), []int{1, out}, 1)
	want.Shape = []int{out}
	c.gave("LinearWeightGrad", db, err, want, tolerance{result: 1, terms: 0x1p-40, inside: 1})
	none, db, err := c.r.LinearWeightGrad(c.ctx, dy.Tensor, x.Tensor, false)
	require.NoError(c.t, err)
	require.Nil(c.t, db)
	if c.kind == ordinary {
		require.Equal(c.t, c.elements(dw), c.elements(none), "with the sums or without")
	}
	dy.unchanged("LinearWeightGrad")
	x.unchanged("LinearWeightGrad")
}

// inputGradTrial: of an input that ReLU has made, what is not above 0 lets no gradient through, if it is masked.
func inputGradTrial[T kernel.Float](c *trial[T]) {
	if c.kind == special {
		c.kind = ordinary
	}
	rows, in, out := c.sized(), c.sized(), c.sized()
	dy, w, y := c.operand(rows, out), c.operand(out, in), c.operand(rows, in)
	relu, mask := y.Tensor, c.rand.IntN(3) > 0
	if !mask {
		relu = nil
	}
	want := reference.MatMul(dy.array(), w.array(), false, false)
	c.dirty()
	dx, masked, err := c.r.LinearInputGrad(c.ctx, dy.Tensor, w.Tensor, relu, c.sized())
	require.False(c.t, masked && !mask)
	for i, v := range y.array().Data {
		if masked && v <= 0 {
			want.Data[i], want.Size[i] = 0, 0
		}
	}
	c.gave("LinearInputGrad", dx, err, want, tolerance{terms: float64(out+1) * unit[T](), inside: 1})
	dy.unchanged("LinearInputGrad")
	w.unchanged("LinearInputGrad")
	y.unchanged("LinearInputGrad")
}

// TestLinearInputGradRefuses what is no gradient of a layer.
func TestLinearInputGradRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	dy, w, y := put(r, make([]float32, 6), 2, 3), put(r, make([]float32, 12), 3, 4), put(r, make([]float32, 8), 2, 4)
	for _, bad := range [][3]*Tensor{{dy, y, nil}, {dy, w, dy}, {dy, put(r, make([]float32, 3), 3), nil}, {put(r, make([]float32, 1)), w, nil}, {dy, put(r, make([]float64, 12), 3, 4), nil}, {nil, w, nil}} {
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

// TestLinearWeightGradOfSequences: any number of dimensions in front are rows, and none is one row.
func TestLinearWeightGradOfSequences(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	dy, err := FromSlice(r.ctx, r.Runtime, []float64{1, 2, 3, 4, 5, 6}, 1, 3, 2)
	require.NoError(t, err)
	x, err := FromSlice(r.ctx, r.Runtime, []float64{1, 0, 2}, 1, 3, 1)
	require.NoError(t, err)
	for _, ofBias := range []bool{true, false} {
		dw, db, err := r.LinearWeightGrad(r.ctx, dy, x, ofBias)
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int(dw.Shape()))
		got, err := ToSlice[float64](r.ctx, dw, nil)
		require.NoError(t, err)
		require.Equal(t, []float64{11, 14}, got)
		if !ofBias {
			require.Nil(t, db)
			continue
		}
		got, err = ToSlice[float64](r.ctx, db, nil)
		require.NoError(t, err)
		require.Equal(t, []float64{9, 12}, got)
	}
	row, err := FromSlice(r.ctx, r.Runtime, []float64{3, 4}, 2)
	require.NoError(t, err)
	one, err := FromSlice(r.ctx, r.Runtime, []float64{2}, 1)
	require.NoError(t, err)
	dw, db, err := r.LinearWeightGrad(r.ctx, row, one, true)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int(dw.Shape()))
	require.Equal(t, []int{2}, []int(db.Shape()))
	for _, bad := range [][2]*Tensor{{dy, one}, {row, nil}} {
		_, _, err := r.LinearWeightGrad(r.ctx, bad[0], bad[1], true)
		require.Error(t, err)
	}
}
