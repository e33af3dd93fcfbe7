package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestSmallProductsAgainstReference runs products of all sizes by the kernels for small ones, with the inner dimension cut into one to five parts.
func TestSmallProductsAgainstReference(t *testing.T) {
	r := newRig(t, 1<<30)
	random := rand.New(rand.NewPCG(7, 0))
	own, parts := ownProduct, productParts
	defer func() { ownProduct, productParts = own, parts }()
	ownProduct = func(int, int, int) bool { return true }
	productParts = func(tiles, steps int) int {
		if tiles > partTickets {
			return 1
		}
		return 1 + (7*tiles+steps)%min(steps, 5)
	}
	for range caseCount(4) {
		for _, op := range []operation[float32]{{"MatMul", matMulTrial[float32]}, {"Linear", linearTrial[float32]}, {"LinearWeightGrad", weightGradTrial[float32]}} {
			runTrial(t, r, random, op)
		}
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
	c.gave("LinearWeightGrad", db, err, want, tolerance{result: 1, terms: 0x1p-40})
	none, db, err := c.r.LinearWeightGrad(c.ctx, dy.Tensor, x.Tensor, false)
	require.NoError(c.t, err)
	require.Nil(c.t, db)
	if c.kind == ordinary {
		require.Equal(c.t, c.elements(dw), c.elements(none), "with the sums or without")
	}
	dy.unchanged("LinearWeightGrad")
	x.unchanged("LinearWeightGrad")
}
