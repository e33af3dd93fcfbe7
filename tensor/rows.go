package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// Softmax returns the softmax of x along an axis, which is the last dimension unless it is given (torch.softmax).
func (r Reductions) Softmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.softmax(ctx, "Softmax", backend.Softmax, axis, x)
}

// LogSoftmax returns the logarithm of [Reductions.Softmax] (torch.log_softmax).
func (r Reductions) LogSoftmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.softmax(ctx, "LogSoftmax", backend.LogSoftmax, axis, x)
}

func (rt *Runtime) softmax(ctx context.Context, op string, of backend.Op, axis []int, ts ...*Tensor) (*Tensor, error) {
	in, r, err := rt.acquireRows(op, axis, ts...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := sameShape(op, ts[0], ts[len(ts)-1]); err != nil {
		return nil, err
	}
	return rt.result(ctx, op, ts[0].dtype, ts[0].shape, func(out *Tensor) error {
		c := rt.call(of, out)
		for _, t := range ts {
			c.Add(t.ref())
		}
		backend.SetParams(c, r)
		return rt.backend.Do(ctx, c)
	})
}

// SoftmaxGrad is the gradient of [Reductions.Softmax]'s argument, y * (dy - sum(dy*y)) along the axis.
func (d Gradients) SoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return d.rt.softmax(ctx, "SoftmaxGrad", backend.SoftmaxGrad, axis, dy, y)
}

// LogSoftmaxGrad is the gradient of [Reductions.LogSoftmax]'s argument, dy - exp(y) * sum(dy) along the axis.
func (d Gradients) LogSoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return d.rt.softmax(ctx, "LogSoftmaxGrad", backend.LogSoftmaxGrad, axis, dy, y)
}

// ArgMax returns the index of the greatest element along an axis, the last dimension unless it is given, as int32; the first
// of several (torch.argmax). NaN counts as the greatest. The axis disappears from the shape.
func (r Reductions) ArgMax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	rt := r.rt
	in, rows, err := rt.acquireRows("ArgMax", axis, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if rows.Cols == 0 {
		return nil, fmt.Errorf("tensor: ArgMax: %w: the dimension of %v is 0: there is nothing to choose from", ErrShape, x.shape)
	}
	if len(axis) == 0 {
		axis = []int{-1}
	}
	_, shape, err := rt.planSum("ArgMax", x.shape, axis)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, "ArgMax", Int32, shape, func(out *Tensor) error {
		c := rt.call(backend.ArgMax, out, x)
		c.Dtype = x.dtype
		backend.SetParams(c, rows)
		return rt.backend.Do(ctx, c)
	})
}

// acquireRows acquires tensors of which the first has the vectors of one axis, the last unless it is given.
func (rt *Runtime) acquireRows(op string, axis []int, ts ...*Tensor) (in operands, r kernel.Rows, err error) {
	if in, err = rt.acquireFloats(op, ts...); err != nil {
		return in, r, err
	}
	shape, at := ts[0].shape, len(ts[0].shape)-1
	switch {
	case len(axis) > 1:
		err = fmt.Errorf("tensor: %s: %w: axes %v: want one, or none for the last", op, ErrInvalid, axis)
	case len(axis) == 1:
		at, err = axisOf(op, shape, axis[0])
	case len(shape) == 0:
		err = fmt.Errorf("tensor: %s: %w: a scalar has no last dimension", op, ErrShape)
	}
	if in, err = in.unless(err); err != nil {
		return in, r, err
	}
	return in, kernel.Rows{Cols: shape[at], Inner: elements(shape[at+1:])}, nil
}
