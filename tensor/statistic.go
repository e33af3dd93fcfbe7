package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Statistics are taken over the given axes, which disappear from the shape; over all of them if none is given. Negative
// axes count from the end. Their gradients take the same axes; dy and the result y may have the axes as dimensions of 1, too.

// Amax returns the greatest element of x over the axes; NaN if one is (torch.amax). There must be at least one.
func (r Reductions) Amax(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Amax, name: "Amax", infer: reduced}, axes, x)
}

// AmaxGrad is the gradient of [Reductions.Amax]'s argument: elements that are equal to the greatest
// share dy.
func (d Gradients) AmaxGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.AmaxGrad, name: "AmaxGrad", infer: reducedGrad}, axes, dy, x, y)
}

// Max returns the greatest element of all, a scalar; NaN if one is (torch.max without a dimension).
func (r Reductions) Max(ctx context.Context, x *Tensor) (*Tensor, error) {
	return r.rt.run(ctx, opSpec{op: backend.Max, name: "Max", infer: reduced}, x)
}

// MaxGrad is the gradient of [Reductions.Max]'s argument: that of Amax, except that NaN equals
// NaN.
func (d Gradients) MaxGrad(ctx context.Context, dy, x, y *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.MaxGrad, name: "MaxGrad", infer: reducedGrad}, dy, x, y)
}

// LogSumExp returns the logarithm of the sum of exponentials over the axes, without overflow (torch.logsumexp). Of no elements
// it is -Inf.
func (r Reductions) LogSumExp(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.LogSumExp, name: "LogSumExp", infer: reduced}, axes, x)
}

// LogSumExpGrad is the gradient of [Reductions.LogSumExp]'s argument, dy * exp(x - y).
func (d Gradients) LogSumExpGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.LogSumExpGrad, name: "LogSumExpGrad", infer: reducedGrad}, axes, dy, x, y)
}

// Var returns the variance over the axes: the sum of squared distances from the mean over the number of elements less the
// correction (torch.var, whose correction is 1). It is NaN or infinite where the correction takes all elements away.
func (r Reductions) Var(ctx context.Context, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Var, name: "Var", infer: reduced, c: [2]float64{correction}}, axes, x)
}

// VarGrad is the gradient of [Reductions.Var]'s argument.
func (d Gradients) VarGrad(ctx context.Context, dy, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.VarGrad, name: "VarGrad", infer: reducedGrad, c: [2]float64{correction}}, axes, dy, x)
}
