package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestOwnProductsAgainstReference runs products of all sizes by the kernels of each tiling, with the inner dimension cut into one to five parts.
func TestOwnProductsAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(7, 0))
	own, parts := ownTiling, productParts
	defer func() { ownTiling, productParts = own, parts }()
	productParts = func(_ *tiling, tiles, steps int) int {
		if tiles > partTickets {
			return 1
		}
		return 1 + (7*tiles+steps)%min(steps, 5)
	}
	for range caseCount(4) {
		for _, cut := range []*tiling{narrowTiling, wideTiling} {
			ownTiling = func(kernel.MatMul, bool) *tiling { return cut }
			for _, op := range []operation[float32]{{"MatMul", matMulTrial[float32]}, {"Linear", linearTrial[float32]}, {"LinearWeightGrad", weightGradTrial[float32]}} {
				runTrial(t, r, random, op)
			}
		}
	}
}

// TestOwnTiling: each product goes where docs/decisions/planned-products.md has measured it to be fastest, and what was not measured to the library.
func TestOwnTiling(t *testing.T) {
	for _, c := range []struct {
		p    kernel.MatMul
		relu bool
		want *tiling
	}{
		{kernel.MatMul{M: 128, N: 192, K: 64, TransB: true}, false, narrowTiling},
		{kernel.MatMul{M: 512, N: 512, K: 128, TransA: true}, false, narrowTiling},
		{kernel.MatMul{M: 10, N: 512, K: 1024, TransA: true}, false, narrowTiling},
		{kernel.MatMul{M: 1024, N: 512, K: 512, TransB: true}, false, wideTiling},
		{kernel.MatMul{M: 128, N: 512, K: 784, TransB: true}, false, wideTiling},
		{kernel.MatMul{M: 1000, N: 500, K: 300, TransB: true}, true, wideTiling},
		{kernel.MatMul{M: 512, N: 784, K: 1024, TransA: true}, false, wideTiling},
		{kernel.MatMul{M: 512, N: 512, K: 1024, TransA: true}, false, wideTiling},
		{kernel.MatMul{M: 512, N: 784, K: 128, TransA: true}, false, wideTiling},
		{kernel.MatMul{M: 512, N: 784, K: 64, TransA: true}, false, nil},
		{kernel.MatMul{M: 512, N: 512, K: 64, TransA: true}, false, nil},
		{kernel.MatMul{M: 64, N: 512, K: 784, TransB: true}, true, nil},
		{kernel.MatMul{M: 1000, N: 500, K: 300, TransB: true}, false, nil},
		{kernel.MatMul{M: 512, N: 512, K: 2048, TransB: true}, false, nil},
		{kernel.MatMul{M: 1024, N: 512, K: 512}, false, nil},
		{kernel.MatMul{M: 1024, N: 512, K: 10}, false, nil},
		{kernel.MatMul{M: 768, N: 768, K: 512, TransA: true}, false, nil},
	} {
		require.Same(t, c.want, ownTiling(c.p, c.relu), "%+v, ReLU %v", c.p, c.relu)
	}
}

// TestLinearAgainstReference, by whatever the device takes for a product of the size.
func TestLinearAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(8, 0))
	for range caseCount(2) {
		runTrial(t, r, random, operation[float32]{"Linear", linearTrial[float32]})
		runTrial(t, r, random, operation[float64]{"Linear", linearTrial[float64]})
		runTrial(t, r, random, operation[float32]{"LinearWeightGrad", weightGradTrial[float32]})
		runTrial(t, r, random, operation[float64]{"LinearWeightGrad", weightGradTrial[float64]})
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
	c.gave("Linear", y, err, want, tolerance{terms: float64(in+2) * unit[T](), inside: 1})
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
