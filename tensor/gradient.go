package tensor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// The gradients of elementwise functions take dst, where the result goes: dy itself to work in place, or nil
// for a new tensor. dy is the gradient of the function's result y. All have one shape.

// ReLUGrad is the gradient of [Runtime.ReLU]'s argument: dy where y > 0, else 0.
func (rt *Runtime) ReLUGrad(ctx context.Context, dst, dy, y *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.ReLUGrad, dst, dy, y, 0, 0)
}

// ReLUBiasGrad is the gradient of both operands of ReLU(x + bias), from its result y (…, n): dx as [Runtime.ReLUGrad]'s, to dst, and db (n), the
// sums of its rows.
func (rt *Runtime) ReLUBiasGrad(ctx context.Context, dst, dy, y *Tensor) (dx, db *Tensor, err error) {
	const op = "ReLUBiasGrad"
	in, err := rt.acquireAlike(op, dy, y)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	if len(y.shape) == 0 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: a scalar has no rows", op, ErrShape)
	}
	if db, err = rt.alloc(ctx, op, y.dtype, y.shape[len(y.shape)-1:]); err != nil {
		return nil, nil, err
	}
	dx, err = rt.into(ctx, op, dst, dy, []*Tensor{y}, func(out *Tensor) error {
		if db.bytes == 0 {
			return nil
		}
		return rt.reluBiasGrad(ctx, out, db, dy, y)
	})
	if err != nil {
		return nil, nil, errors.Join(err, db.Release())
	}
	return dx, db, nil
}

func (rt *Runtime) reluBiasGrad(ctx context.Context, dx, db, dy, y *Tensor) error {
	if dx.bytes == 0 {
		return rt.memset("ReLUBiasGrad", db)
	}
	if done, err := rt.fused(ctx, rt.call(backend.ReLUBiasGrad, dx, db, dy, y)); done {
		return err
	}
	if err := rt.zipTo(ctx, backend.ReLUGrad, dx, dy, y); err != nil {
		return err
	}
	return rt.sumTo(ctx, db, keptColumns(dx), dx, 1)
}

// TanhGrad is the gradient of [Runtime.Tanh]'s argument, dy * (1 - y*y).
func (rt *Runtime) TanhGrad(ctx context.Context, dst, dy, y *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.TanhGrad, dst, dy, y, 0, 0)
}

// SigmoidGrad is the gradient of [Runtime.Sigmoid]'s argument, dy * y * (1 - y).
func (rt *Runtime) SigmoidGrad(ctx context.Context, dst, dy, y *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.SigmoidGrad, dst, dy, y, 0, 0)
}

// SqrtGrad is the gradient of [Runtime.Sqrt]'s argument, dy / (2*y).
func (rt *Runtime) SqrtGrad(ctx context.Context, dst, dy, y *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.SqrtGrad, dst, dy, y, 0, 0)
}

// SquareGrad is the gradient of [Runtime.Square]'s argument x, dy * 2*x.
func (rt *Runtime) SquareGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.SquareGrad, dst, dy, x, 0, 0)
}

// MulGrad is the gradient of a factor, dy times the other factor.
func (rt *Runtime) MulGrad(ctx context.Context, dst, dy, other *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.Mul, dst, dy, other, 0, 0)
}

// DivGrad is the gradient of a dividend, dy over the divisor.
func (rt *Runtime) DivGrad(ctx context.Context, dst, dy, divisor *Tensor) (*Tensor, error) {
	return rt.grad(ctx, backend.Div, dst, dy, divisor, 0, 0)
}

// grad is the gradient of a function with parameters c and d, where saved is the argument or the
// result.
func (rt *Runtime) grad(ctx context.Context, op backend.Op, dst, dy, saved *Tensor, c, d float64) (*Tensor, error) {
	in, err := rt.acquireAlike(op.Name(), dy, saved)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.into(ctx, op.Name(), dst, dy, []*Tensor{saved}, func(out *Tensor) error {
		call := rt.call(op, out, dy, saved)
		if op.Family() == backend.Zip {
			call.Plan = rt.broadcast(out.shape, dy.shape, saved.shape)
		}
		call.C = [2]float64{c, d}
		return rt.backend.Do(ctx, call)
	})
}

// into runs a kernel whose result goes to dst or, if that is nil, to a new tensor, of the shape and dtype of
// like. dst may be like, but overlap nothing else that the kernel reads.
func (rt *Runtime) into(ctx context.Context, op string, dst, like *Tensor, others []*Tensor, run func(out *Tensor) error) (*Tensor, error) {
	if dst == nil {
		return rt.result(ctx, op, like.dtype, like.shape, run)
	}
	in, err := rt.acquireAlike(op, dst, like)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if dst.overlaps(like) || slices.ContainsFunc(others, dst.overlaps) {
		return nil, overlapError(op)
	}
	dst.overwritten()
	return dst, run(dst)
}
