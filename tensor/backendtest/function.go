package backendtest

import (
	"context"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/fn"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func functionOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"function", functionTrial[T]}, {"function gradient", functionGradTrial[T]}, {"extreme gradient", extremeGradTrial[T]}, {"where", whereTrial[T]},
	}
}

// sloped is an elementwise function with a gradient, its parameters and its reference.
type sloped struct {
	reference.Function
	name     string
	op, grad backend.Op
	c, d     float64
}

// slopedFunctions returns all functions with a slope, with parameters of the type of the elements.
func (c *trial[T]) slopedFunctions() (all []sloped) {
	for i := range kernel.Functions {
		f := &kernel.Functions[i]
		if f.Slope == nil {
			continue
		}
		twin := reference.Functions[f.Name]
		require.NotNil(c.t, twin, "package reference has no %s", f.Name)
		p, q := c.scalar(), c.scalar()
		if f.Ordered {
			p, q = min(p, q), max(p, q)
		}
		all = append(all, sloped{twin(float64(T(p)), float64(T(q))), f.Name, backend.Map.Of(i), backend.MapGrad.Of(len(all)), p, q})
	}
	return all
}

// value returns the function as a value of package fn.
func (f sloped) value() fn.Function {
	return fn.Function{Name: f.name, Op: f.op, Grad: f.grad, C: f.c, D: f.d}
}

// inFunction is the tolerance of functions with several roundings in float64, one of them of a
// transcendental function.
func inFunction[T kernel.Float]() tolerance {
	tol := transcendental[T]()
	tol.result += inDouble[T](8).result - 1
	tol.terms, tol.inside = 16*0x1p-53, 1
	return tol
}

// few returns a shape of few elements, because the reference is slow.
func (c *trial[T]) few() []int {
	for {
		if s := c.shape(); elements(s) <= 100 {
			return s
		}
	}
}

func functionTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.few()...)
	for _, f := range c.slopedFunctions() {
		c.attempt(func() {
			c.dirty()
			y, err := c.r.Apply(c.ctx, f.value(), x.Tensor)
			c.gave(f.name, y, err, f.Apply(x.array()), inFunction[T]())
			x.unchanged(f.name)
		})
	}
}

func functionGradTrial[T kernel.Float](c *trial[T]) {
	shape := c.few()
	for _, f := range c.slopedFunctions() {
		dy, saved := c.operand(shape...), c.operand(shape...)
		want := f.Gradient(dy.array(), saved.array())
		dst := c.destination(dy, saved)
		c.dirty()
		out, err := c.r.ApplyGrad(c.ctx, f.value(), dst.tensor(), dy.Tensor, saved.Tensor)
		c.went(f.name+" gradient", dst, out, err, want, inFunction[T](), dy, saved)
	}
}

func extremeGradTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(2) == 0 {
		c.kind = tied
	}
	a := c.operand(c.few()...)
	b := c.operand(c.narrowed(a.Shape())...)
	dy := c.operand(a.Shape()...)
	half := func(v []float64, own bool) float64 {
		switch {
		case v[1] == v[2]:
			return float64(T(v[0] / 2))
		case own || math.IsNaN(v[1]) || math.IsNaN(v[2]):
			return v[0]
		}
		return 0
	}
	names := []string{"MaximumGrad", "MinimumGrad"}
	run := []func(_ context.Context, dst, dy, a, b *tensor.Tensor) (*tensor.Tensor, error){c.r.MaximumGrad, c.r.MinimumGrad}
	f := []func(v []float64) float64{
		func(v []float64) float64 { return half(v, v[1] > v[2]) }, func(v []float64) float64 { return half(v, v[1] < v[2]) },
	}
	i := c.rand.IntN(2)
	c.dirty()
	out, err := run[i](c.ctx, nil, dy.Tensor, b.Tensor, a.Tensor)
	c.gave(names[i], out, err, reference.Meet(dy.Shape(), f[i], dy.array(), b.array(), a.array()), exact)
	want := reference.Meet(dy.Shape(), f[i], dy.array(), a.array(), b.array())
	dst := c.destination(dy, a)
	out, err = run[i](c.ctx, dst.tensor(), dy.Tensor, a.Tensor, b.Tensor)
	c.went(names[i], dst, out, err, want, exact, dy, a, b)
}

func whereTrial[T kernel.Float](c *trial[T]) {
	out := c.shape()
	a, b := c.operand(c.narrowed(out)...), c.operand(c.narrowed(out)...)
	cond := reference.Array{Shape: c.narrowed(out)}
	for range elements(cond.Shape) {
		cond.Data = append(cond.Data, float64(c.rand.IntN(3)*c.rand.IntN(100)))
	}
	var on *tensor.Tensor
	switch c.rand.IntN(3) {
	case 0:
		on = wholeNumbers(c, cond, func(v float64) uint8 { return uint8(v) })
	case 1:
		on = wholeNumbers(c, cond, func(v float64) int32 { return -int32(v) << 24 })
		cond.Data = only(cond.Data, func(v float64) float64 { return float64(int32(v) << 24) })
	default:
		on = wholeNumbers(c, cond, func(v float64) int64 { return int64(v) << 32 })
	}
	broadcast := func(shapes ...[]int) (all []int) {
		for _, s := range shapes {
			all = reference.Broadcast(all, s)
		}
		return all
	}
	zero := reference.Array{Data: []float64{0}}
	c.dirty()
	switch c.rand.IntN(3) {
	case 0:
		want := reference.Meet(broadcast(cond.Shape, a.Shape()), choice, cond, a.array(), zero)
		y, err := c.r.Where(c.ctx, on, a.Tensor, nil)
		c.gave("Where of one", y, err, want, exact)
	case 1:
		want := reference.Meet(broadcast(cond.Shape, b.Shape()), choice, cond, zero, b.array())
		y, err := c.r.Where(c.ctx, on, nil, b.Tensor)
		c.gave("Where of the other", y, err, want, exact)
	default:
		want := reference.Meet(broadcast(cond.Shape, a.Shape(), b.Shape()), choice, cond, a.array(), b.array())
		y, err := c.r.Where(c.ctx, on, a.Tensor, b.Tensor)
		c.gave("Where", y, err, want, exact)
	}
	a.unchanged("Where")
	b.unchanged("Where")
}

func choice(v []float64) float64 {
	if v[0] != 0 {
		return v[1]
	}
	return v[2]
}

func only(all []float64, f func(float64) float64) []float64 {
	for i, v := range all {
		all[i] = f(v)
	}
	return all
}

// wholeNumbers returns a tensor of whole numbers.
func wholeNumbers[I tensor.Element, T kernel.Float](c *trial[T], x reference.Array, of func(float64) I) *tensor.Tensor {
	data := make([]I, len(x.Data))
	for i, v := range x.Data {
		data[i] = of(v)
	}
	t, err := c.r.New(c.ctx, tensor.DtypeOf[I](), x.Shape...)
	require.NoError(c.t, err)
	require.NoError(c.t, tensor.CopyFrom(c.ctx, t, data))
	return t
}
