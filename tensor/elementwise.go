package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
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
	in, err := rt.acquireFloats(op.Name(), a, b)
	if err != nil {
		return nil, err
	}
	defer in.release()
	shape, err := broadcastShape(op.Name(), a.shape, b.shape)
	if err != nil {
		return nil, err
	}
	return rt.reusing(ctx, op.Name(), &in, shape, a, b, func(out *Tensor) error { return rt.zipTo(ctx, op, out, a, b) })
}

// zipTo queues an operation on two operands, which broadcast to out's shape.
func (rt *Runtime) zipTo(ctx context.Context, op backend.Op, out, a, b *Tensor) error {
	c := rt.call(op, out, a, b)
	c.Plan = rt.broadcast(out.shape, a.shape, b.shape)
	return rt.backend.Do(ctx, c)
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
	return rt.zipTo(ctx, op, a, a, b)
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

// MulScalarInPlace multiplies x by c.
func (e Elementwise) MulScalarInPlace(ctx context.Context, x *Tensor, c float64) error {
	rt := e.rt
	in, err := rt.acquireFloats("mul scalar in place", x)
	if err != nil {
		return err
	}
	defer in.release()
	x.overwritten()
	call := rt.call(backend.MulScalar, x, x)
	call.C[0] = c
	return rt.backend.Do(ctx, call)
}

// AddBias returns x + bias for every row of x (rows, …, n); bias has n elements.
func (e Elementwise) AddBias(ctx context.Context, x, bias *Tensor) (*Tensor, error) {
	rt := e.rt
	in, err := rt.acquireBias("AddBias", x, bias)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.reusing(ctx, "AddBias", &in, x.shape, x, nil, func(out *Tensor) error { return rt.run(ctx, backend.AddBias, out, x, bias) })
}

// AddBiasInPlace adds bias to every row of x (rows, …, n); bias has n elements.
func (e Elementwise) AddBiasInPlace(ctx context.Context, x, bias *Tensor) error {
	return e.rt.addBiasInPlace(ctx, "AddBiasInPlace", backend.AddBias, x, bias)
}

// AddBiasReLUInPlace is AddBiasInPlace and then ReLU, in one pass over the memory.
func (e Elementwise) AddBiasReLUInPlace(ctx context.Context, x, bias *Tensor) error {
	return e.rt.addBiasInPlace(ctx, "AddBiasReLUInPlace", backend.AddBiasReLU, x, bias)
}

func (rt *Runtime) addBiasInPlace(ctx context.Context, op string, of backend.Op, x, bias *Tensor) error {
	in, err := rt.acquireBias(op, x, bias)
	if err != nil {
		return err
	}
	defer in.release()
	if x.overlaps(bias) {
		return overlapError(op)
	}
	x.overwritten()
	return rt.run(ctx, of, x, x, bias)
}

func (rt *Runtime) acquireBias(op string, x, bias *Tensor) (operands, error) {
	in, err := rt.acquireFloats(op, x, bias)
	if err != nil {
		return in, err
	}
	if last := len(x.shape) - 1; last < 0 || len(bias.shape) != 1 || bias.shape[0] != x.shape[last] {
		err = fmt.Errorf("tensor: %s: %w: %v and %v: want (rows, …, n) and (n)", op, ErrShape, x.shape, bias.shape)
	}
	return in.unless(err)
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
	if !dtype.Float() {
		return nil, fmt.Errorf("tensor: Convert: %w: the result can't be %v: want float32, float64 or bfloat16", ErrDtype, dtype)
	}
	return rt.result(ctx, "Convert", dtype, x.shape, func(out *Tensor) error { return rt.run(ctx, backend.Convert, out, x) })
}
