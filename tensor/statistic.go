package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Statistics are computed over the given axes, which disappear from the shape, or over all axes if
// none is given. Negative axes count from the end. Their gradients take the same axes; dy and the
// result y may also have the axes as dimensions of 1.

// Amax returns the greatest element of x over the axes, or NaN if an element is NaN (torch.amax).
// There must be at least one element.
func (r Reductions) Amax(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Amax, name: "Amax", infer: reduced}, axes, x)
}

// Amin returns the smallest element of x over the axes, or NaN if an element is NaN (torch.amin).
// There must be at least one element.
func (r Reductions) Amin(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Amin, name: "Amin", infer: reduced}, axes, x)
}

// AmaxGrad returns the gradient of x in [Reductions.Amax] and [Reductions.Amin]: elements that are
// equal to the result y share dy.
func (d Gradients) AmaxGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.AmaxGrad, name: "AmaxGrad", infer: reducedGrad}, axes, dy, x, y)
}

// Max returns the greatest of all elements, a scalar, or NaN if an element is NaN (torch.max
// without a dimension).
func (r Reductions) Max(ctx context.Context, x *Tensor) (*Tensor, error) {
	return r.rt.run(ctx, opSpec{op: backend.Max, name: "Max", infer: reduced}, x)
}

// Min returns the smallest of all elements, a scalar, or NaN if an element is NaN (torch.min
// without a dimension).
func (r Reductions) Min(ctx context.Context, x *Tensor) (*Tensor, error) {
	return r.rt.run(ctx, opSpec{op: backend.Amin, name: "Min", infer: reduced}, x)
}

// MaxGrad returns the gradient of x in [Reductions.Max] and [Reductions.Min]. It is AmaxGrad,
// except that NaN equals NaN.
func (d Gradients) MaxGrad(ctx context.Context, dy, x, y *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.MaxGrad, name: "MaxGrad", infer: reducedGrad}, dy, x, y)
}

// LogSumExp returns the logarithm of the sum of exponentials over the axes, without overflow
// (torch.logsumexp). Of no elements it is -Inf.
func (r Reductions) LogSumExp(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.LogSumExp, name: "LogSumExp", infer: reduced}, axes, x)
}

// LogSumExpGrad returns the gradient of x in [Reductions.LogSumExp]: dy * exp(x - y).
func (d Gradients) LogSumExpGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.LogSumExpGrad, name: "LogSumExpGrad", infer: reducedGrad}, axes, dy, x, y)
}

// Var returns the variance over the axes: the sum of squared distances from the mean, divided by
// the number of elements less the correction (torch.var, with a default correction of 1). It is NaN
// or infinite if the correction leaves no elements.
func (r Reductions) Var(ctx context.Context, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.Var, name: "Var", infer: reduced, c: [2]float64{correction}}, axes, x)
}

// VarGrad returns the gradient of x in [Reductions.Var].
func (d Gradients) VarGrad(ctx context.Context, dy, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.VarGrad, name: "VarGrad", infer: reducedGrad, c: [2]float64{correction}}, axes, dy, x)
}

// VectorNorm returns the norm of the vectors over the axes (torch.linalg.vector_norm): the sum of
// magnitudes for a p of 1, the root of the sum of squares for 2, and the greatest magnitude, which
// requires an element, for +Inf. Other p are errors. It is computed in float64, and is NaN if an
// element is NaN.
func (r Reductions) VectorNorm(ctx context.Context, x *Tensor, p float64, axes ...int) (*Tensor, error) {
	if err := checkNorm("VectorNorm", p); err != nil {
		return nil, err
	}
	return r.rt.runAlong(ctx, opSpec{op: backend.VectorNorm, name: "VectorNorm", infer: reduced, c: [2]float64{p}}, axes, x)
}

// VectorNormGrad returns the gradient of x in [Reductions.VectorNorm]. At the zero vector it is 0.
// For a p of +Inf the elements of the greatest magnitude share dy.
func (d Gradients) VectorNormGrad(ctx context.Context, dy, x, y *Tensor, p float64, axes ...int) (*Tensor, error) {
	if err := checkNorm("VectorNormGrad", p); err != nil {
		return nil, err
	}
	return d.rt.runAlong(ctx, opSpec{op: backend.VectorNormGrad, name: "VectorNormGrad", infer: reducedGrad, c: [2]float64{p}}, axes, dy, x, y)
}

func checkNorm(op string, p float64) error {
	if p != 1 && p != 2 && !math.IsInf(p, 1) {
		return fmt.Errorf("tensor: %s: %w: p is %v: want 1, 2 or +Inf", op, ErrInvalid, p)
	}
	return nil
}
