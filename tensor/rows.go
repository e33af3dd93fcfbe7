package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Softmax returns the softmax of x along an axis, by default the last dimension (torch.softmax).
func (r Reductions) Softmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Softmax, name: "Softmax", infer: rows}, axis, x)
}

// LogSoftmax returns the logarithm of [Reductions.Softmax] (torch.log_softmax).
func (r Reductions) LogSoftmax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.LogSoftmax, name: "LogSoftmax", infer: rows}, axis, x)
}

// SoftmaxGrad returns the gradient of x in [Reductions.Softmax]: y * (dy - sum(dy*y)) along the
// axis.
func (d Gradients) SoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.SoftmaxGrad, name: "SoftmaxGrad", infer: rows}, axis, dy, y)
}

// LogSoftmaxGrad returns the gradient of x in [Reductions.LogSoftmax]: dy - exp(y) * sum(dy) along
// the axis.
func (d Gradients) LogSoftmaxGrad(ctx context.Context, dy, y *Tensor, axis ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.LogSoftmaxGrad, name: "LogSoftmaxGrad", infer: rows}, axis, dy, y)
}

// ArgMax returns, as int32, the index of the greatest element along an axis, by default the last
// dimension (torch.argmax). Of several greatest elements it is the first. NaN counts as the
// greatest. The axis disappears from the shape.
func (r Reductions) ArgMax(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.ArgMax, name: "ArgMax", infer: chosen, dtype: Int32}, axis, x)
}

// ArgMin is [Reductions.ArgMax] for the smallest element (torch.argmin). NaN counts as the
// smallest.
func (r Reductions) ArgMin(ctx context.Context, x *Tensor, axis ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.ArgMin, name: "ArgMin", infer: chosen, dtype: Int32}, axis, x)
}
