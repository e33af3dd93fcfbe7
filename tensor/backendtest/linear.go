package backendtest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// linearOps are the operations of a layer, for products as large as a GPU's tiles and larger.
func linearOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"Linear", linearTrial[T]}, {"LinearWeightGrad", weightGradTrial[T]},
		{"LinearInputGrad", inputGradTrial[T]},
	}
}

// sized returns a dimension: a part of a tile, several tiles, or many stages.
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
	f, op := c.r.Linear, backend.MatMulAddBias
	if relu {
		f, op = c.r.LinearReLU, backend.MatMulAddBiasReLU
	}
	y, err := f(c.ctx, x.Tensor, w.Tensor, b.Tensor)
	tol := tolerance{terms: float64(in+2) * unit[T](), inside: 1}
	if _, library := c.r.Device().(device.MatrixMultiplier); c.narrow != 0 && (library || c.r.composes(op)) {
		// The product is rounded to 16 bits before the bias is added. cuBLASLt was seen to do so
		// sometimes.
		tol.terms += c.narrow.Epsilon() / 2
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

// inputGradTrial has inputs that ReLU has made. If the gradient is masked, inputs of at most 0 get
// none.
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
