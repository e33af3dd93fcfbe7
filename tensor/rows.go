package tensor

import (
	"context"
	"fmt"
)

// Softmax returns the softmax of x along its last dimension.
func (rt *Runtime) Softmax(ctx context.Context, x *Tensor) (*Tensor, error) {
	in, err := rt.acquireRows("Softmax", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	out, err := rt.alloc(ctx, "Softmax", x.dtype, x.shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.softmax(out, x))
}

// SoftmaxGrad is the gradient of [Runtime.Softmax]'s argument, y * (dy - sum(dy*y)) along the last dimension.
func (rt *Runtime) SoftmaxGrad(ctx context.Context, dy, y *Tensor) (*Tensor, error) {
	in, err := rt.acquireRows("SoftmaxGrad", dy, y)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := sameShape("SoftmaxGrad", dy, y); err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "SoftmaxGrad", y.dtype, y.shape)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.softmaxGrad(out, dy, y))
}

// ArgMax returns the index of the greatest element along the last dimension, as int32; the first of several.
// NaN counts as the greatest.
func (rt *Runtime) ArgMax(ctx context.Context, x *Tensor) (*Tensor, error) {
	in, err := rt.acquireRows("ArgMax", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	last := len(x.shape) - 1
	if x.shape[last] == 0 {
		return nil, fmt.Errorf("tensor: ArgMax: %w: the last dimension of %v is 0: there is nothing to choose from", ErrShape, x.shape)
	}
	out, err := rt.alloc(ctx, "ArgMax", Int32, x.shape[:last])
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.argMax(out, x))
}

func (rt *Runtime) acquireRows(op string, ts ...*Tensor) (operands, error) {
	in, err := rt.acquireFloats(op, ts...)
	if err == nil && len(ts[0].shape) == 0 {
		in.release()
		return operands{}, fmt.Errorf("tensor: %s: %w: a scalar has no last dimension", op, ErrShape)
	}
	return in, err
}

// CrossEntropy returns the mean over the rows of logits (n, classes) of -log softmax(row)[label], a scalar
// (torch.nn.functional.cross_entropy). labels is (n), int32. A label outside [0, classes) makes the loss NaN;
// the next read or Synchronize returns the error, which wraps [ErrLabel].
func (rt *Runtime) CrossEntropy(ctx context.Context, logits, labels *Tensor) (*Tensor, error) {
	in, err := rt.acquireClasses("CrossEntropy", logits, labels)
	if err != nil {
		return nil, err
	}
	defer in.release()
	fault, err := rt.faultWord(ctx)
	if err != nil {
		return nil, fmt.Errorf("tensor: CrossEntropy: %w", err)
	}
	defer func() { rt.parked.add(fault.release(ctx)) }()
	loss, err := rt.alloc(ctx, "CrossEntropy", logits.dtype, nil)
	if err != nil {
		return nil, err
	}
	err = rt.kernels.crossEntropy(loss, logits, labels, fault)
	rt.faults.arm()
	return loss.orRelease(err)
}

// CrossEntropyGrad is the gradient of the logits of [Runtime.CrossEntropy], (softmax(row) - onehot(label)) / n,
// times the scalar dloss. It goes to dst, which may be the logits to work in place, or nil for a new tensor.
// Rows with a label outside [0, classes) get 0.
func (rt *Runtime) CrossEntropyGrad(ctx context.Context, dst, logits, labels, dloss *Tensor) (*Tensor, error) {
	const op = "CrossEntropyGrad"
	in, err := rt.acquireClasses(op, logits, labels)
	if err != nil {
		return nil, err
	}
	defer in.release()
	grad, err := rt.acquireFloats(op, logits, dloss)
	if err != nil {
		return nil, err
	}
	defer grad.release()
	if dloss.Elements() != 1 {
		return nil, fmt.Errorf("tensor: %s: %w: the loss's gradient is %v: want a scalar", op, ErrShape, dloss.shape)
	}
	return rt.into(ctx, op, dst, logits, []*Tensor{labels, dloss}, func(out *Tensor) error {
		return rt.kernels.crossEntropyGrad(out, logits, labels, dloss)
	})
}

func (rt *Runtime) acquireClasses(op string, logits, labels *Tensor) (operands, error) {
	in, err := rt.acquire(op, logits, labels)
	if err != nil {
		return in, err
	}
	switch {
	case !isFloat(logits.dtype) || labels.dtype != Int32:
		err = fmt.Errorf("tensor: %s: %w: logits are %v and labels %v: want float32 or float64, and int32", op, ErrDtype, logits.dtype, labels.dtype)
	case len(logits.shape) != 2 || len(labels.shape) != 1 || labels.shape[0] != logits.shape[0]:
		err = fmt.Errorf("tensor: %s: %w: logits are %v and labels %v: want (n, classes) and (n)", op, ErrShape, logits.shape, labels.shape)
	default:
		return in, nil
	}
	in.release()
	return operands{}, err
}
