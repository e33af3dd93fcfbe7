package backendtest

import (
	"context"
	"math"
	"math/big"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// exact is the tolerance of operations that IEEE 754 rounds once.
var exact = tolerance{}

// transcendental is the tolerance of functions with two units in the last place in float64. Vector
// instructions compute them for float32 with polynomials of a relative error of 2^-34, and then
// round: the results are within 0.502 units, as package simd shows with every argument.
func transcendental[T kernel.Float]() tolerance {
	tol := inDouble[T](8)
	if single[T]() {
		tol.result += 0.004
	}
	return tol
}

// inDouble is the tolerance of results that were computed in float64 with so many roundings, and
// rounded to T.
func inDouble[T kernel.Float](roundings float64) tolerance {
	return tolerance{result: 1 + roundings*0x1p-53/unit[T]()}
}

func elementwiseOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"binary", binaryTrial[T]}, {"binary", binaryTrial[T]}, {"binary in place", binaryInPlaceTrial[T]}, {"unary", unaryTrial[T]},
		{"unary", unaryTrial[T]}, {"mul scalar in place", scalarInPlaceTrial[T]}, {"bias", biasTrial[T]}, {"convert", convertTrial[T]},
		{"movement", movementTrial[T]},
	}
}

// binaryOps returns the operations of two tensors that broadcast.
func binaryOps(r *rig) (name []string, run []func(context.Context, *tensor.Tensor, *tensor.Tensor) (*tensor.Tensor, error), f []func(a, b float64) float64) {
	return []string{"Add", "Sub", "Mul", "Div", "Maximum", "Minimum"},
		[]func(context.Context, *tensor.Tensor, *tensor.Tensor) (*tensor.Tensor, error){r.Add, r.Sub, r.Mul, r.Div, r.Maximum, r.Minimum},
		[]func(a, b float64) float64{
			func(a, b float64) float64 { return a + b }, func(a, b float64) float64 { return a - b },
			func(a, b float64) float64 { return a * b }, func(a, b float64) float64 { return a / b },
			func(a, b float64) float64 { return either(a, b, a > b) }, func(a, b float64) float64 { return either(a, b, a < b) },
		}
}

// either returns a if it wins or is NaN, and b otherwise.
func either(a, b float64, wins bool) float64 {
	if wins || math.IsNaN(a) {
		return a
	}
	return b
}

// other returns a second operand for a: of a shape that broadcasts, or sharing a's memory.
func (c *trial[T]) other(a *operand[T], shape []int) *operand[T] {
	switch c.rand.IntN(6) {
	case 0:
		return a
	case 1:
		share, err := c.r.Share(c.ctx, a.Tensor)
		require.NoError(c.t, err)
		b := *a
		b.Tensor = share
		return &b
	case 2:
		if len(a.Shape()) > 0 && a.Shape()[0] > 1 { // one of a's rows
			b, row := *a, elements(a.Shape()[1:])
			i := c.rand.IntN(a.Shape()[0])
			var err error
			b.Tensor, err = c.r.Rows(c.ctx, a.Tensor, i, i+1)
			require.NoError(c.t, err)
			b.data, b.from = a.data[i*row:(i+1)*row], a.from+i*row
			return &b
		}
	}
	return c.operand(shape...)
}

func binaryTrial[T kernel.Float](c *trial[T]) {
	out := c.shape()
	a := c.operand(c.narrowed(out)...)
	b := c.other(a, c.narrowed(out))
	if c.rand.IntN(2) == 0 {
		a, b = b, a
	}
	names, run, f := binaryOps(c.r)
	for i, name := range names {
		c.dirty()
		y, err := run[i](c.ctx, a.Tensor, b.Tensor)
		c.gave(name, y, err, reference.Binary(a.array(), b.array(), f[i]), exact)
		a.unchanged(name)
		b.unchanged(name)
	}
}

func binaryInPlaceTrial[T kernel.Float](c *trial[T]) {
	a := c.operand(c.shape()...)
	b := c.other(a, c.narrowed(a.Shape()))
	names, _, f := binaryOps(c.r)
	run := []func(context.Context, *tensor.Tensor, *tensor.Tensor) error{c.r.AddInPlace, c.r.SubInPlace, c.r.MulInPlace}
	i := c.rand.IntN(len(run))
	err := run[i](c.ctx, a.Tensor, b.Tensor)
	if a.whole == b.whole && !slices.Equal(a.Shape(), b.Shape()) && a.Bytes() > 0 {
		require.ErrorIs(c.t, err, tensor.ErrInvalid, "overlapping operands")
		a.unchanged(names[i])
		return
	}
	require.NoError(c.t, err)
	want := reference.Binary(a.array(), b.array(), f[i])
	a.became(names[i], want, exact)
	if a.whole != b.whole {
		b.unchanged(names[i])
	}
}

// unaryOp is an operation of one tensor, with the expected function and its tolerance.
type unaryOp struct {
	name string
	run  func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error)
	f    func(float64) float64
	tol  tolerance
}

func unaryOps[T kernel.Float](r *rig, scalar float64) []unaryOp {
	near, k := transcendental[T](), float64(T(scalar)) // a scalar has the type of the elements
	withScalar := func(f func(context.Context, *tensor.Tensor, float64) (*tensor.Tensor, error)) func(context.Context, *tensor.Tensor) (*tensor.Tensor, error) {
		return func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return f(ctx, x, scalar) }
	}
	return []unaryOp{
		{"Neg", r.Neg, func(v float64) float64 { return -v }, exact},
		{"Exp", r.Exp, reference.Exp, tolerance{result: max(near.result, 2)}}, // within 1 ulp
		{"Log", r.Log, reference.Log, near},
		{"Tanh", r.Tanh, reference.Tanh, near},
		{"Sigmoid", r.Sigmoid, reference.Sigmoid, near},
		{"ReLU", r.ReLU, reference.ReLU, exact},
		{"Sqrt", r.Sqrt, math.Sqrt, exact},
		{"Square", r.Square, func(v float64) float64 { return v * v }, exact},
		{"AddScalar", withScalar(r.AddScalar), func(v float64) float64 { return v + k }, exact},
		{"MulScalar", withScalar(r.MulScalar), func(v float64) float64 { return v * k }, exact},
		{"PowScalar", withScalar(r.PowScalar), func(v float64) float64 { return reference.Pow(v, k) }, near},
	}
}

// scalar returns a number that is common in programs, or a random one.
func (c *trial[T]) scalar() float64 {
	list := []float64{0, 1, -1, 2, 3, 0.5, -0.5, 1.5, -2, 0.1, 1e-30, math.Inf(1), c.rand.Float64()*8 - 4}
	return list[c.rand.IntN(len(list))]
}

func unaryTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	ops := unaryOps[T](c.r, c.scalar())
	most := 4096
	if c.r.brief() {
		most = 512
	}
	if len(x.data) > most { // because the reference is slow
		i := c.rand.IntN(len(ops))
		ops = ops[i : i+1]
	}
	for _, op := range ops {
		c.attempt(func() {
			c.dirty()
			y, err := op.run(c.ctx, x.Tensor)
			c.gave(op.name, y, err, reference.Unary(x.array(), op.f), op.tol)
			x.unchanged(op.name)
		})
	}
}

func scalarInPlaceTrial[T kernel.Float](c *trial[T]) {
	x, k := c.operand(c.shape()...), c.scalar()
	require.NoError(c.t, c.r.MulScalarInPlace(c.ctx, x.Tensor, k))
	x.became("MulScalarInPlace", reference.Unary(x.array(), func(v float64) float64 { return v * float64(T(k)) }), exact)
}

func biasTrial[T kernel.Float](c *trial[T]) {
	rows, cols := c.matrix()
	x, bias := c.operand(rows, cols), c.operand(cols)
	add := func(a, b float64) float64 { return a + b }
	addReLU := func(a, b float64) float64 { return reference.ReLU(a + b) }
	switch c.rand.IntN(3) {
	case 0:
		c.dirty()
		y, err := c.r.AddBias(c.ctx, x.Tensor, bias.Tensor)
		c.gave("AddBias", y, err, reference.Binary(x.array(), bias.array(), add), exact)
		x.unchanged("AddBias")
	case 1:
		require.NoError(c.t, c.r.AddBiasInPlace(c.ctx, x.Tensor, bias.Tensor))
		x.became("AddBias", reference.Binary(x.array(), bias.array(), add), exact)
	default:
		require.NoError(c.t, c.r.AddBiasReLUInPlace(c.ctx, x.Tensor, bias.Tensor))
		x.became("AddBiasReLU", reference.Binary(x.array(), bias.array(), addReLU), exact)
	}
	bias.unchanged("AddBias")
}

func convertTrial[T kernel.Float](c *trial[T]) {
	shape := c.shape()
	switch c.rand.IntN(5) {
	case 0:
		convertFrom(c, shape, func() float32 { return float32(c.number()) })
	case 1:
		convertFrom(c, shape, func() float64 { return float64(c.number()) })
	case 2:
		convertFrom(c, shape, func() int32 { return int32(c.rand.Uint64()) >> c.rand.IntN(32) })
	case 3:
		convertFrom(c, shape, func() int64 { return int64(c.rand.Uint64()) >> c.rand.IntN(64) })
	default:
		convertFrom(c, shape, func() uint8 { return uint8(c.rand.Uint64()) })
	}
}

func convertFrom[S tensor.Element, T kernel.Float](c *trial[T], shape []int, number func() S) {
	data := make([]S, elements(shape))
	want := reference.Result{Array: reference.Array{Shape: shape, Data: make([]float64, len(data))}, Size: make([]float64, len(data))}
	for i := range data {
		data[i] = number()
		if n, ok := any(data[i]).(int64); ok && single[T]() { // directly, not by way of float64
			f, _ := new(big.Float).SetInt64(n).Float32()
			want.Data[i] = float64(f)
			continue
		}
		want.Data[i] = float64(data[i])
	}
	x, err := c.r.New(c.ctx, tensor.DtypeOf[S](), shape...)
	require.NoError(c.t, err)
	require.NoError(c.t, tensor.CopyFrom(c.ctx, x, data))
	c.dirty()
	to := tensor.DtypeOf[T]()
	if c.narrow != 0 {
		to = c.narrow
	}
	y, err := c.r.Convert(c.ctx, x, to)
	c.gave("Convert from "+x.Dtype().String(), y, err, want, exact)
}

// movementTrial is for operations that compute nothing.
func movementTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	same := reference.Unary(x.array(), func(v float64) float64 { return v })
	c.dirty()
	switch c.rand.IntN(5) {
	case 0:
		y, err := c.r.Copy(c.ctx, x.Tensor)
		c.gave("Copy", y, err, same, exact)
		require.NoError(c.t, c.r.Zero(c.ctx, x.Tensor))
		c.gave("Copy after Zero of its source", y, nil, same, exact)
		x.became("Zero", reference.Unary(x.array(), func(float64) float64 { return 0 }), exact)
		return
	case 1:
		same.Shape = []int{len(x.data)}
		y, err := c.r.Reshape(c.ctx, x.Tensor, len(x.data))
		c.gave("Reshape", y, err, same, exact)
	case 2:
		k := c.scalar()
		y, err := c.r.Full(c.ctx, k, tensor.DtypeOf[T](), x.Shape()...)
		c.gave("Full", y, err, reference.Unary(x.array(), func(float64) float64 { return float64(T(k)) }), exact)
	case 3:
		y, err := c.r.Zeros(c.ctx, tensor.DtypeOf[T](), x.Shape()...)
		c.gave("Zeros", y, err, reference.Unary(x.array(), func(float64) float64 { return 0 }), exact)
	default:
		for _, dtype := range []tensor.Dtype{tensor.Int32, tensor.Int64, tensor.Uint8} {
			y, err := c.r.Full(c.ctx, 77, dtype, x.Shape()...)
			require.NoError(c.t, err)
			z, err := c.r.Convert(c.ctx, y, tensor.DtypeOf[T]())
			c.gave("Full", z, err, reference.Unary(x.array(), func(float64) float64 { return 77 }), exact)
		}
	}
	x.unchanged("movement")
}
