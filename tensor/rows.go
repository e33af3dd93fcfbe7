package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// Softmax returns the softmax of x along an axis, which is the last dimension unless it is given (torch.softmax).
func (rt *Runtime) Softmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return rt.softmax(ctx, "Softmax", backend.Softmax, x, axis)
}

// LogSoftmax returns the logarithm of [Runtime.Softmax] (torch.log_softmax).
func (rt *Runtime) LogSoftmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return rt.softmax(ctx, "LogSoftmax", backend.LogSoftmax, x, axis)
}

func (rt *Runtime) softmax(ctx context.Context, op string, of backend.Op, x *Tensor, axis []int) (*Tensor, error) {
	in, r, err := rt.acquireRows(op, axis, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	out, err := rt.alloc(ctx, op, x.dtype, x.shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.byRows(ctx, of, r, out, x))
}

// byRows queues an operation on rows.
func (rt *Runtime) byRows(ctx context.Context, op backend.Op, r kernel.Rows, ts ...*Tensor) error {
	c := rt.call(op, ts...)
	backend.SetParams(c, r)
	return rt.backend.Do(ctx, c)
}

// SoftmaxGrad is the gradient of [Runtime.Softmax]'s argument, y * (dy - sum(dy*y)) along the axis.
func (rt *Runtime) SoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return rt.softmaxGrad(ctx, "SoftmaxGrad", backend.SoftmaxGrad, dy, y, axis)
}

// LogSoftmaxGrad is the gradient of [Runtime.LogSoftmax]'s argument, dy - exp(y) * sum(dy) along the axis.
func (rt *Runtime) LogSoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return rt.softmaxGrad(ctx, "LogSoftmaxGrad", backend.LogSoftmaxGrad, dy, y, axis)
}

func (rt *Runtime) softmaxGrad(ctx context.Context, op string, of backend.Op, dy, y *Tensor, axis []int) (*Tensor, error) {
	in, r, err := rt.acquireRows(op, axis, dy, y)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := sameShape(op, dy, y); err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, op, y.dtype, y.shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.byRows(ctx, of, r, out, dy, y))
}

// ArgMax returns the index of the greatest element along an axis, the last dimension unless it is given, as int32; the first
// of several (torch.argmax). NaN counts as the greatest. The axis disappears from the shape.
func (rt *Runtime) ArgMax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	in, r, err := rt.acquireRows("ArgMax", axis, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if r.Cols == 0 {
		return nil, fmt.Errorf("tensor: ArgMax: %w: the dimension of %v is 0: there is nothing to choose from", ErrShape, x.shape)
	}
	if len(axis) == 0 {
		axis = []int{-1}
	}
	_, shape, err := rt.planSum("ArgMax", x.shape, axis)
	if err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "ArgMax", Int32, shape)
	if err != nil {
		return nil, err
	}
	c := rt.call(backend.ArgMax, out, x)
	c.Dtype = x.code
	backend.SetParams(c, r)
	return out.orRelease(rt.backend.Do(ctx, c))
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
	if err != nil {
		in.release()
		return operands{}, r, err
	}
	return in, kernel.Rows{Cols: shape[at], Inner: elements(shape[at+1:])}, nil
}
