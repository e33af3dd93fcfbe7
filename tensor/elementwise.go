package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Add returns a + b, broadcast after NumPy's rules.
func (e Elementwise) Add(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Add, a, b)
}

// Sub returns a - b, broadcast after NumPy's rules.
func (e Elementwise) Sub(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Sub, a, b)
}

// Mul returns the elementwise product a * b, broadcast after NumPy's rules.
func (e Elementwise) Mul(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Mul, a, b)
}

// Div returns a / b, broadcast after NumPy's rules. Division by zero gives an infinity or NaN.
func (e Elementwise) Div(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Div, a, b)
}

func (rt *Runtime) zip(ctx context.Context, op backend.Op, a, b *Tensor) (*Tensor, error) {
	return rt.run(ctx, opSpec{op: op, infer: broadcast, to: donated}, a, b)
}

// AddInPlace adds b to a (Tensor.add_). b must broadcast to a's shape.
func (e Elementwise) AddInPlace(ctx context.Context, a, b *Tensor) error {
	return e.rt.zipInPlace(ctx, "add in place", backend.Add, a, b)
}

// SubInPlace subtracts b from a (Tensor.sub_). b must broadcast to a's shape.
func (e Elementwise) SubInPlace(ctx context.Context, a, b *Tensor) error {
	return e.rt.zipInPlace(ctx, "sub in place", backend.Sub, a, b)
}

// MulInPlace multiplies a by b (Tensor.mul_). b must broadcast to a's shape.
func (e Elementwise) MulInPlace(ctx context.Context, a, b *Tensor) error {
	return e.rt.zipInPlace(ctx, "mul in place", backend.Mul, a, b)
}

func (rt *Runtime) zipInPlace(ctx context.Context, name string, op backend.Op, a, b *Tensor) error {
	_, err := rt.run(ctx, opSpec{op: op, name: name, infer: broadcast, to: inPlace}, a, b)
	return err
}

// MulScalarInPlace multiplies x by c.
func (e Elementwise) MulScalarInPlace(ctx context.Context, x *Tensor, c float64) error {
	_, err := e.rt.run(ctx, opSpec{op: backend.MulScalar, name: "mul scalar in place", to: inPlace, c: [2]float64{c}}, x)
	return err
}

// AddBias returns x + bias for every row of x (rows, …, n); bias has n elements.
func (e Elementwise) AddBias(ctx context.Context, x, bias *Tensor) (*Tensor, error) {
	return e.rt.addBias(ctx, "AddBias", backend.AddBias, donated, x, bias)
}

// AddBiasInPlace adds bias to every row of x (rows, …, n); bias has n elements.
func (e Elementwise) AddBiasInPlace(ctx context.Context, x, bias *Tensor) error {
	_, err := e.rt.addBias(ctx, "AddBiasInPlace", backend.AddBias, inPlace, x, bias)
	return err
}

// AddBiasReLUInPlace is AddBiasInPlace and then ReLU, in one pass over the memory.
func (e Elementwise) AddBiasReLUInPlace(ctx context.Context, x, bias *Tensor) error {
	_, err := e.rt.addBias(ctx, "AddBiasReLUInPlace", backend.AddBiasReLU, inPlace, x, bias)
	return err
}

func (rt *Runtime) addBias(ctx context.Context, name string, op backend.Op, to destination, x, bias *Tensor) (*Tensor, error) {
	return rt.run(ctx, opSpec{op: op, name: name, infer: biased, to: to}, x, bias)
}

// Convert returns x in dtype, which is of floating point (Tensor.to). Numbers are rounded to a
// dtype of 16 bits by way of float32.
func (rt *Runtime) Convert(ctx context.Context, x *Tensor, dtype Dtype) (*Tensor, error) {
	in, err := rt.acquire("Convert", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := checkDtype("Convert", dtype); err != nil {
		return nil, err
	}
	if !dtype.Float() {
		return nil, fmt.Errorf("tensor: Convert: %w: the result can't be %v: want a floating-point dtype, such as float32", ErrDtype, dtype)
	}
	return rt.result(ctx, "Convert", dtype, x.shape, func(out *Tensor) error { return rt.backend.Do(ctx, rt.call(backend.Convert, out, x)) })
}
