package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Sum returns the sum of x over the given axes, which disappear from the shape, or over all axes if
// none is given. Negative axes count from the end.
func (r Reductions) Sum(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Sum, name: "Sum", infer: reduced, c: [2]float64{1}}, axes, x)
}

// Mean returns the mean of x over the given axes, as Sum does. The mean of no elements is NaN.
func (r Reductions) Mean(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Sum, name: "Mean", infer: reduced, mean: true}, axes, x)
}

// SumTo returns the sum of x over the dimensions in which shape was broadcast to x's shape. It is
// the gradient of a broadcast.
func (r Reductions) SumTo(ctx context.Context, x *Tensor, shape ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Sum, name: "SumTo", infer: summed}, shape, x)
}

// BroadcastTo returns a copy of x, repeated to the given shape.
func (rt *Runtime) BroadcastTo(ctx context.Context, x *Tensor, shape ...int) (*Tensor, error) {
	return rt.runAlong(ctx, opSpec{op: backend.Broadcast, name: "BroadcastTo", infer: repeated}, shape, x, x)
}
