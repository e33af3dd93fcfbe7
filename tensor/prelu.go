package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// PReLU returns x where it is positive, and x times weight elsewhere (torch.nn.functional.prelu).
// weight has one element, or one for each channel of x (n, channels, ...).
func (e Elementwise) PReLU(ctx context.Context, x, weight *Tensor) (*Tensor, error) {
	const op = "PReLU"
	in, err := e.rt.acquireFloats(op, x, weight)
	if err != nil {
		return nil, err
	}
	defer in.release()
	c, err := channelsOf(op, x.shape, weight.shape)
	if err != nil {
		return nil, err
	}
	out, err := e.rt.allocResult(ctx, op, &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(e.rt.prelu(ctx, backend.PReLU, c, out, x, weight))
}

// PReLUGrad returns the gradient of x in [Elementwise.PReLU]. dy is the gradient of the result. The
// gradient is written to dst: dy itself to work in place, or nil for a new tensor.
func (d Gradients) PReLUGrad(ctx context.Context, dst, dy, x, weight *Tensor) (*Tensor, error) {
	const op = "PReLUGrad"
	in, err := d.rt.acquireFloats(op, dy, x, weight)
	if err != nil {
		return nil, err
	}
	defer in.release()
	c, err := channelsOf(op, x.shape, weight.shape)
	if err == nil {
		err = sameShape(op, dy, x)
	}
	if err != nil {
		return nil, err
	}
	return d.rt.into(ctx, op, &in, dst, dy, []*Tensor{x, weight}, func(dx *Tensor) error { return d.rt.prelu(ctx, backend.PReLUGrad, c, dx, dy, x, weight) })
}

// PReLUWeightGrad returns the gradient of the weight in [Elementwise.PReLU]. weights is the number
// of its elements: 1, or the number of channels of x. dy is the gradient of the result.
func (d Gradients) PReLUWeightGrad(ctx context.Context, dy, x *Tensor, weights int) (*Tensor, error) {
	const op = "PReLUWeightGrad"
	in, err := d.rt.acquireAlike(op, dy, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	shape := [1]int{weights}
	c, err := channelsOf(op, x.shape, shape[:])
	if err != nil {
		return nil, err
	}
	return d.rt.result(ctx, op, x.dtype, shape[:], func(dweight *Tensor) error { return d.rt.prelu(ctx, backend.PReLUWeightGrad, c, dweight, dy, x) })
}

// channelsOf returns how the elements of x meet weights.
func channelsOf(op string, x, weight Shape) (plan.Channels, error) {
	if len(weight) == 1 && weight[0] == 1 {
		return plan.Channels{Channels: 1, Inner: max(1, elements(x))}, nil
	}
	if len(weight) != 1 || len(x) < 2 || weight[0] != x[1] {
		return plan.Channels{}, fmt.Errorf("tensor: %s: %w: %v and weights %v: want (1), or (channels) for x (n, channels, …)", op, ErrShape, x, weight)
	}
	return plan.Channels{Channels: x[1], Inner: elements(x[2:])}, nil
}

func (rt *Runtime) prelu(ctx context.Context, op backend.Op, c plan.Channels, ts ...*Tensor) error {
	if ts[0].bytes == 0 {
		return nil
	}
	call := rt.call(op, ts...)
	backend.SetParams(call, c)
	return rt.backend.Do(ctx, call)
}
