package backendtest

import (
	"context"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func meetOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"comparison", comparisonTrial[T]}, {"comparison of whole numbers", wholeComparisonTrial[T]},
		{"MaskedFill", maskedFillTrial[T]}, {"Pow", powTrial[T]}, {"Pow gradient", powGradTrial[T]}, {"triangle", triangleTrial[T]}}
}

// relation is a comparison and the condition of its mask.
type relation struct {
	name  string
	run   func(ctx context.Context, a, b *tensor.Tensor) (*tensor.Tensor, error)
	holds func(a, b float64) bool
}

func relations(r *rig) []relation {
	return []relation{
		{"Equal", r.Equal, func(a, b float64) bool { return a == b }},
		{"NotEqual", r.NotEqual, func(a, b float64) bool { return a != b }},
		{"Less", r.Less, func(a, b float64) bool { return a < b }},
		{"LessEqual", r.LessEqual, func(a, b float64) bool { return a <= b }},
		{"Greater", r.Greater, func(a, b float64) bool { return a > b }},
		{"GreaterEqual", r.GreaterEqual, func(a, b float64) bool { return a >= b }},
	}
}

// marked checks a mask.
func (c *trial[T]) marked(of relation, y *tensor.Tensor, err error, a, b reference.Array) {
	c.t.Helper()
	require.NoError(c.t, err, of.name)
	require.Equal(c.t, tensor.Uint8, y.Dtype(), of.name)
	want := reference.Binary(a, b, func(a, b float64) float64 {
		if of.holds(a, b) {
			return 1
		}
		return 0
	})
	z, err := c.r.Convert(c.ctx, y, tensor.DtypeOf[T]())
	c.gave(of.name, z, err, want, exact)
}

func comparisonTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(2) == 0 {
		c.kind = tied
	}
	out := c.shape()
	a := c.operand(c.narrowed(out)...)
	b := c.other(a, c.narrowed(out))
	for _, of := range relations(c.r) {
		c.dirty()
		y, err := of.run(c.ctx, a.Tensor, b.Tensor)
		c.marked(of, y, err, a.array(), b.array())
		a.unchanged(of.name)
		b.unchanged(of.name)
	}
}

// wholeComparisonTrial includes int64 numbers that float64 can't distinguish.
func wholeComparisonTrial[T kernel.Float](c *trial[T]) {
	out := c.few()
	some := func() reference.Array {
		x := reference.Array{Shape: c.narrowed(out)}
		for range elements(x.Shape) {
			x.Data = append(x.Data, float64(c.rand.IntN(4)))
		}
		return x
	}
	a, b := some(), some()
	var x, y *tensor.Tensor
	switch c.rand.IntN(3) {
	case 0:
		to := func(v float64) uint8 { return 252 + uint8(v) }
		x, y = wholeNumbers(c, a, to), wholeNumbers(c, b, to)
	case 1:
		to := func(v float64) int32 { return int32(v) - 2 }
		x, y = wholeNumbers(c, a, to), wholeNumbers(c, b, to)
	default:
		to := func(v float64) int64 { return math.MinInt64 + int64(v) }
		x, y = wholeNumbers(c, a, to), wholeNumbers(c, b, to)
	}
	for _, of := range relations(c.r) {
		c.dirty()
		mask, err := of.run(c.ctx, x, y)
		c.marked(of, mask, err, a, b)
	}
	_, err := c.r.Less(c.ctx, x, c.operand(out...).Tensor)
	require.ErrorIs(c.t, err, tensor.ErrDtype)
}

func maskedFillTrial[T kernel.Float](c *trial[T]) {
	out := c.shape()
	x, mask := c.operand(c.narrowed(out)...), reference.Array{Shape: c.narrowed(out)}
	for range elements(mask.Shape) {
		mask.Data = append(mask.Data, float64(c.rand.IntN(2)))
	}
	value := []T{c.number()}
	c.round(value)
	on := wholeNumbers(c, mask, func(v float64) uint8 { return uint8(v) })
	want := reference.Meet(reference.Broadcast(mask.Shape, x.Shape()), choice, mask, arrayOf(nil, value), x.array())
	c.dirty()
	y, err := c.r.MaskedFill(c.ctx, x.Tensor, on, float64(value[0]))
	c.gave("MaskedFill", y, err, want, exact)
	x.unchanged("MaskedFill")
	y, err = c.r.MaskedFill(c.ctx, on, on, 256)
	c.refused("MaskedFill of uint8 with 256", y, err, tensor.ErrInvalid)
}

func powTrial[T kernel.Float](c *trial[T]) {
	out := c.few()
	a := c.operand(c.narrowed(out)...)
	b := c.other(a, c.narrowed(out))
	c.dirty()
	y, err := c.r.Pow(c.ctx, a.Tensor, b.Tensor)
	c.gave("Pow", y, err, reference.Binary(a.array(), b.array(), reference.Pow), transcendental[T]())
	a.unchanged("Pow")
	b.unchanged("Pow")
}

func powGradTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(3) == 0 {
		c.kind = tied
	}
	a := c.operand(c.few()...)
	b := c.operand(c.narrowed(a.Shape())...)
	dy := c.operand(a.Shape()...)
	base := func(v []float64) float64 {
		if v[2] == 0 {
			return 0
		}
		return v[0] * (v[2] * reference.Pow(v[1], v[2]-1))
	}
	exponent := func(v []float64) float64 {
		if v[1] == 0 && v[2] >= 0 {
			return v[0] * 0
		}
		return v[0] * (reference.Pow(v[1], v[2]) * reference.Log(v[1]))
	}
	tol := inFunction[T]()
	c.dirty()
	y, err := c.r.PowBaseGrad(c.ctx, nil, dy.Tensor, b.Tensor, a.Tensor)
	c.gave("PowBaseGrad", y, err, reference.Meet(dy.Shape(), base, dy.array(), b.array(), a.array()), tol)
	run, of := c.r.PowBaseGrad, base
	if c.rand.IntN(2) == 0 {
		run, of = c.r.PowExponentGrad, exponent
	}
	want := reference.Meet(dy.Shape(), of, dy.array(), a.array(), b.array())
	dst := c.destination(dy, a)
	c.dirty()
	y, err = run(c.ctx, dst.tensor(), dy.Tensor, a.Tensor, b.Tensor)
	c.went("Pow gradient", dst, y, err, want, tol, dy, a, b)
}

func triangleTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	if len(shape) == 1 {
		y, err := c.r.Tril(c.ctx, c.operand(shape...).Tensor, 0)
		c.refused("Tril of a vector", y, err, tensor.ErrShape)
		shape = append(shape, 1+c.rand.IntN(5))
	}
	x := c.operand(shape...)
	diagonal := []int{0, 1, -1, c.rand.IntN(9) - 4, math.MinInt, math.MaxInt}[c.rand.IntN(6)]
	for i, run := range []func(context.Context, *tensor.Tensor, int) (*tensor.Tensor, error){c.r.Tril, c.r.Triu} {
		c.dirty()
		y, err := run(c.ctx, x.Tensor, diagonal)
		c.gave("triangle", y, err, reference.Triangle(x.array(), diagonal, i == 1), exact)
		x.unchanged("triangle")
	}
	ones := reference.Unary(x.array(), func(float64) float64 { return 1 }).Array
	y, err := c.r.Triu(c.ctx, wholeNumbers(c, ones, func(v float64) uint8 { return uint8(v) }), diagonal)
	require.NoError(c.t, err)
	z, err := c.r.Convert(c.ctx, y, tensor.DtypeOf[T]())
	c.gave("Triu of uint8", z, err, reference.Triangle(ones, diagonal, true), exact)
}
