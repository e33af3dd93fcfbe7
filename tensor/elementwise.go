package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// Add returns a + b, broadcast after NumPy's rules.
func (rt *Runtime) Add(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return rt.zip(ctx, kernel.Add, a, b)
}

// Sub returns a - b, broadcast after NumPy's rules.
func (rt *Runtime) Sub(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return rt.zip(ctx, kernel.Sub, a, b)
}

// Mul returns the elementwise product a * b, broadcast after NumPy's rules.
func (rt *Runtime) Mul(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return rt.zip(ctx, kernel.Mul, a, b)
}

// Div returns a / b, broadcast after NumPy's rules. Division by zero gives an infinity or NaN.
func (rt *Runtime) Div(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return rt.zip(ctx, kernel.Div, a, b)
}

func (rt *Runtime) zip(ctx context.Context, op kernel.Binary, a, b *Tensor) (*Tensor, error) {
	in, err := rt.acquireFloats(op.Name(), a, b)
	if err != nil {
		return nil, err
	}
	defer in.release()
	shape, err := broadcastShape(op.Name(), a.shape, b.shape)
	if err != nil {
		return nil, err
	}
	out, err := rt.allocResult(ctx, op.Name(), &in, shape, a, b)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.binary(op, out, a, b))
}

// AddInPlace adds b to a (Tensor.add_). b must broadcast to a's shape.
func (rt *Runtime) AddInPlace(_ context.Context, a, b *Tensor) error {
	return rt.zipInPlace("add in place", kernel.Add, a, b)
}

// SubInPlace subtracts b from a (Tensor.sub_). b must broadcast to a's shape.
func (rt *Runtime) SubInPlace(_ context.Context, a, b *Tensor) error {
	return rt.zipInPlace("sub in place", kernel.Sub, a, b)
}

// MulInPlace multiplies a by b (Tensor.mul_). b must broadcast to a's shape.
func (rt *Runtime) MulInPlace(_ context.Context, a, b *Tensor) error {
	return rt.zipInPlace("mul in place", kernel.Mul, a, b)
}

func (rt *Runtime) zipInPlace(name string, op kernel.Binary, a, b *Tensor) error {
	in, err := rt.acquireFloats(name, a, b)
	if err != nil {
		return err
	}
	defer in.release()
	shape, err := broadcastShape(name, a.shape, b.shape)
	if err != nil {
		return err
	}
	if !slices.Equal(shape, a.shape) {
		return fmt.Errorf("tensor: %s: %w: %v and %v make %v, which has no room in the first", name, ErrShape, a.shape, b.shape, shape)
	}
	if a.overlaps(b) {
		return overlapError(name)
	}
	a.overwritten()
	return rt.kernels.binary(op, a, a, b)
}

// overlaps reports whether a and b share memory other than element for element.
func (t *Tensor) overlaps(b *Tensor) bool {
	return t.shares(b) && !(t.ptr() == b.ptr() && slices.Equal(t.shape, b.shape))
}

// shares reports whether a byte belongs to both tensors. Those of FromBlock may share one without a storage.
func (t *Tensor) shares(b *Tensor) bool {
	return t.ptr() < b.ptr()+device.Ptr(b.bytes) && b.ptr() < t.ptr()+device.Ptr(t.bytes)
}

func overlapError(op string) error {
	return fmt.Errorf("tensor: %s: %w: the operands overlap in memory", op, ErrInvalid)
}

// Neg returns -x.
func (rt *Runtime) Neg(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Neg, x, 0)
}

// Exp returns e to the power of x.
func (rt *Runtime) Exp(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Exp, x, 0)
}

// Log returns the natural logarithm of x.
func (rt *Runtime) Log(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Log, x, 0)
}

// Tanh returns the hyperbolic tangent of x.
func (rt *Runtime) Tanh(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Tanh, x, 0)
}

// Sigmoid returns 1 / (1 + exp(-x)).
func (rt *Runtime) Sigmoid(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Sigmoid, x, 0)
}

// ReLU returns max(x, 0); NaN stays NaN.
func (rt *Runtime) ReLU(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.ReLU, x, 0)
}

// Sqrt returns the square root of x.
func (rt *Runtime) Sqrt(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Sqrt, x, 0)
}

// Square returns x * x.
func (rt *Runtime) Square(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.each(ctx, kernel.Square, x, 0)
}

// AddScalar returns x + c.
func (rt *Runtime) AddScalar(ctx context.Context, x *Tensor, c float64) (*Tensor, error) {
	return rt.each(ctx, kernel.AddConst, x, c)
}

// MulScalar returns x * c.
func (rt *Runtime) MulScalar(ctx context.Context, x *Tensor, c float64) (*Tensor, error) {
	return rt.each(ctx, kernel.MulConst, x, c)
}

// PowScalar returns x to the power of c.
func (rt *Runtime) PowScalar(ctx context.Context, x *Tensor, c float64) (*Tensor, error) {
	return rt.each(ctx, kernel.PowConst, x, c)
}

// MulScalarInPlace multiplies x by c.
func (rt *Runtime) MulScalarInPlace(_ context.Context, x *Tensor, c float64) error {
	in, err := rt.acquireFloats("mul scalar in place", x)
	if err != nil {
		return err
	}
	defer in.release()
	x.overwritten()
	return rt.kernels.unary(kernel.MulConst, x, x, c)
}

func (rt *Runtime) each(ctx context.Context, u kernel.Unary, x *Tensor, c float64) (*Tensor, error) {
	in, err := rt.acquireFloats(u.Name(), x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if math.IsNaN(c) {
		return nil, fmt.Errorf("tensor: %s: %w: the scalar is NaN", u.Name(), ErrInvalid)
	}
	out, err := rt.allocResult(ctx, u.Name(), &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.unary(u, out, x, c))
}

// AddBias returns x + bias for every row of x (rows, …, n); bias has n elements.
func (rt *Runtime) AddBias(ctx context.Context, x, bias *Tensor) (*Tensor, error) {
	in, err := rt.acquireBias("AddBias", x, bias)
	if err != nil {
		return nil, err
	}
	defer in.release()
	out, err := rt.allocResult(ctx, "AddBias", &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.addBias(out, x, bias, false))
}

// AddBiasInPlace adds bias to every row of x (rows, …, n); bias has n elements.
func (rt *Runtime) AddBiasInPlace(_ context.Context, x, bias *Tensor) error {
	return rt.addBiasInPlace("AddBiasInPlace", x, bias, false)
}

// AddBiasReLUInPlace is AddBiasInPlace and then ReLU, in one pass over the memory.
func (rt *Runtime) AddBiasReLUInPlace(_ context.Context, x, bias *Tensor) error {
	return rt.addBiasInPlace("AddBiasReLUInPlace", x, bias, true)
}

func (rt *Runtime) addBiasInPlace(op string, x, bias *Tensor, relu bool) error {
	in, err := rt.acquireBias(op, x, bias)
	if err != nil {
		return err
	}
	defer in.release()
	if x.overlaps(bias) {
		return overlapError(op)
	}
	x.overwritten()
	return rt.kernels.addBias(x, x, bias, relu)
}

func (rt *Runtime) acquireBias(op string, x, bias *Tensor) (operands, error) {
	in, err := rt.acquireFloats(op, x, bias)
	if err != nil {
		return in, err
	}
	if last := len(x.shape) - 1; last < 0 || len(bias.shape) != 1 || bias.shape[0] != x.shape[last] {
		in.release()
		return operands{}, fmt.Errorf("tensor: %s: %w: %v and %v: want (rows, …, n) and (n)", op, ErrShape, x.shape, bias.shape)
	}
	return in, nil
}

// Convert returns x with another dtype: float32, float64, or bfloat16, to which it is rounded by way of float32 (Tensor.to).
func (rt *Runtime) Convert(ctx context.Context, x *Tensor, dtype Dtype) (*Tensor, error) {
	in, err := rt.acquire("Convert", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := checkDtype("Convert", dtype); err != nil {
		return nil, err
	}
	if !isFloat(dtype) {
		return nil, fmt.Errorf("tensor: Convert: %w: the result can't be %v: want float32, float64 or bfloat16", ErrDtype, dtype)
	}
	out, err := rt.alloc(ctx, "Convert", dtype, x.shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.convert(out, x))
}
