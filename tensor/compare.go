package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Comparisons return a mask of uint8: 1 where the relation holds, and 0 elsewhere.
// [Elementwise.Where] takes it as its condition. The operands have the same dtype, of any kind, and
// broadcast after NumPy's rules. NaN is unequal to everything, and neither less nor greater.

// Equal marks where a equals b (torch.eq).
func (e Elementwise) Equal(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "Equal", backend.Equal, a, b)
}

// NotEqual marks where a does not equal b (torch.ne).
func (e Elementwise) NotEqual(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "NotEqual", backend.NotEqual, a, b)
}

// Less marks where a is less than b (torch.lt).
func (e Elementwise) Less(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "Less", backend.Less, a, b)
}

// LessEqual marks where a is not greater than b, nor NaN (torch.le).
func (e Elementwise) LessEqual(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "LessEqual", backend.LessEqual, a, b)
}

// Greater marks where a is greater than b (torch.gt).
func (e Elementwise) Greater(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "Greater", backend.Less, b, a)
}

// GreaterEqual marks where a is not less than b, nor NaN (torch.ge).
func (e Elementwise) GreaterEqual(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.compare(ctx, "GreaterEqual", backend.LessEqual, b, a)
}

func (rt *Runtime) compare(ctx context.Context, name string, op backend.Op, a, b *Tensor) (*Tensor, error) {
	in, err := rt.acquire(name, a, b)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if a.dtype != b.dtype {
		return nil, fmt.Errorf("tensor: %s: %w: %v and %v: want one dtype for both", name, ErrDtype, a.dtype, b.dtype)
	}
	shape, err := broadcastShape(name, a.shape, b.shape)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, name, Uint8, shape, func(out *Tensor) error {
		c := rt.call(op, out, a, b)
		c.Dtype, c.Plan = a.dtype, rt.broadcast(out.shape, a.shape, b.shape)
		return rt.backend.Do(ctx, c)
	})
}
