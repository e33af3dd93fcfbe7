package backendtest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func gradientOps[T kernel.Float]() []operation[T] {
	ops := []operation[T]{{"SoftmaxGrad", softmaxGradTrial[T]}, {"CrossEntropyGrad", crossEntropyGradTrial[T]}, {"ReLUBiasGrad", reluBiasGradTrial[T]}}
	for i := range gradientKinds[T](&rig{}) {
		ops = append(ops, operation[T]{"gradient", func(c *trial[T]) { gradientTrial(c, gradientKinds[T](c.r)[i]) }})
	}
	return ops
}

// gradientKind is the gradient of an elementwise function.
type gradientKind struct {
	name   string
	of     fn.Function
	f      func(dy, y float64) float64
	tol    tolerance
	lo, hi float64 // the range of the function's results
}

func gradientKinds[T kernel.Float](r *rig) []gradientKind {
	inf, u := math.Inf(1), tolerance{result: 5}
	return []gradientKind{
		{"ReLUGrad", fn.ReLU, reference.ReLUGrad, exact, -inf, inf},
		{"TanhGrad", fn.Tanh, reference.TanhGrad, u, -1, 1},
		{"SigmoidGrad", fn.Sigmoid, reference.SigmoidGrad, u, 0, 1},
		{"SqrtGrad", fn.Sqrt, reference.SqrtGrad, exact, -1e30, 1e30},
		{"SquareGrad", fn.Square, reference.SquareGrad, exact, -1e30, 1e30},
		{"Exp's", fn.Exp, func(dy, y float64) float64 { return dy * y }, exact, -inf, inf},
		{"Log's", fn.Log, func(dy, y float64) float64 { return dy / y }, exact, -inf, inf},
	}
}

// within moves numbers into [lo, hi]; NaN stays.
func within[T kernel.Float](data []T, lo, hi float64) []T {
	for i, v := range data {
		switch {
		case float64(v) > hi:
			data[i] = T(hi)
		case float64(v) < lo:
			data[i] = T(lo)
		}
	}
	return data
}

// destination returns the operand that a gradient is written to: nil, dy, another handle of dy, y,
// or another operand.
func (c *trial[T]) destination(dy, y *operand[T]) (dst *operand[T]) {
	switch c.rand.IntN(6) {
	case 0:
		return dy
	case 1:
		share, err := c.r.Share(c.ctx, dy.Tensor)
		require.NoError(c.t, err)
		dst := *dy
		dst.Tensor = share
		return &dst
	case 2:
		if y != nil {
			return y
		}
	case 3:
		return c.operand(dy.Shape()...)
	}
	return nil
}

// went checks a gradient, in its destination if there is one.
func (c *trial[T]) went(op string, dst *operand[T], y *tensor.Tensor, err error, want reference.Result, tol tolerance, read ...*operand[T]) {
	c.t.Helper()
	if dst == nil {
		c.gave(op, y, err, want, tol)
	} else {
		require.NoError(c.t, err)
		require.Same(c.t, dst.Tensor, y, op)
		dst.became(op, want, tol)
	}
	for _, o := range read {
		if dst == nil || dst.whole != o.whole {
			o.unchanged(op)
		}
	}
}

func gradientTrial[T kernel.Float](c *trial[T], g gradientKind) {
	shape := c.shape()
	if c.rand.IntN(8) == 0 {
		shape = []int{1, 1, 1}[:c.rand.IntN(4)]
	}
	dy, y := c.operand(shape...), c.operand(shape...)
	y = c.operandOf(within(y.data, g.lo, g.hi), shape)
	want := reference.Binary(dy.array(), y.array(), g.f)
	dst := c.destination(dy, y)
	c.dirty()
	out, err := c.r.ApplyGrad(c.ctx, g.of, dst.tensor(), dy.Tensor, y.Tensor)
	c.went(g.name, dst, out, err, want, g.tol, dy, y)
}

// tensor returns the operand's tensor, or nil.
func (o *operand[T]) tensor() *tensor.Tensor {
	if o == nil {
		return nil
	}
	return o.Tensor
}

func softmaxGradTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	dy, y := c.operand(shape...), c.operand(shape...)
	want := reference.SoftmaxGrad(dy.array(), y.array())
	c.dirty()
	out, err := c.r.SoftmaxGrad(c.ctx, dy.Tensor, y.Tensor)
	tol := rowSum[T](shape[len(shape)-1])
	tol.inside = 1
	c.gave("SoftmaxGrad", out, err, want, tol)
	dy.unchanged("SoftmaxGrad")
	y.unchanged("SoftmaxGrad")
}

func crossEntropyGradTrial[T kernel.Float](c *trial[T]) {
	logits, labels, on, _ := c.classes()
	dloss := c.wide().operandOf([]T{T(c.rand.Float64()*6 - 3)}, [][]int{{}, {1}, {1, 1}}[c.rand.IntN(3)])
	want := reference.CrossEntropyGrad(logits.array(), labels, float64(dloss.data[0]))
	dst := c.destination(logits, nil)
	c.dirty()
	out, err := c.r.CrossEntropyGrad(c.ctx, dst.tensor(), logits.Tensor, on, dloss.Tensor)
	c.went("CrossEntropyGrad", dst, out, err, want, rowSum[T](len(logits.data)), logits, dloss)
}

func reluBiasGradTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	shape := append(c.few(), 1+c.rand.IntN(40))
	dy, y := c.operand(shape...), c.operand(shape...)
	want := reference.Binary(dy.array(), y.array(), reference.ReLUGrad)
	kept := slices.Repeat([]int{1}, len(shape))
	kept[len(shape)-1] = shape[len(shape)-1]
	sums := reference.SumTo(want.Array, kept, 1)
	sums.Shape = shape[len(shape)-1:]
	c.dirty()
	dx, db, err := c.r.ReLUBiasGrad(c.ctx, nil, dy.Tensor, y.Tensor)
	c.gave("ReLUBiasGrad", dx, err, want, exact)
	c.gave("ReLUBiasGrad", db, err, sums, rowSum[T](len(dy.data)))
	dy.unchanged("ReLUBiasGrad")
	y.unchanged("ReLUBiasGrad")
}
