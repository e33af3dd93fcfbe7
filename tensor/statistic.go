package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Statistics are taken over the given axes, which disappear from the shape; over all of them if none is given. Negative
// axes count from the end. Their gradients take the same axes; dy and the result y may have the axes as dimensions of 1, too.

// Amax returns the greatest element of x over the axes; NaN if one is (torch.amax). There must be at least one.
func (r Reductions) Amax(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.reduce(ctx, "Amax", backend.Amax, x, 0, axes)
}

// AmaxGrad is the gradient of [Reductions.Amax]'s argument: elements that are equal to the greatest share dy.
func (d Gradients) AmaxGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.reduceGrad(ctx, "AmaxGrad", backend.AmaxGrad, dy, x, y, 0, axes)
}

// Max returns the greatest element of all, a scalar; NaN if one is (torch.max without a dimension).
func (r Reductions) Max(ctx context.Context, x *Tensor) (*Tensor, error) {
	return r.rt.reduce(ctx, "Max", backend.Max, x, 0, nil)
}

// MaxGrad is the gradient of [Reductions.Max]'s argument: that of Amax, but for NaN, which is equal to NaN.
func (d Gradients) MaxGrad(ctx context.Context, dy, x, y *Tensor) (*Tensor, error) {
	return d.rt.reduceGrad(ctx, "MaxGrad", backend.MaxGrad, dy, x, y, 0, nil)
}

// LogSumExp returns the logarithm of the sum of exponentials over the axes, without overflow (torch.logsumexp). Of no elements
// it is -Inf.
func (r Reductions) LogSumExp(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.reduce(ctx, "LogSumExp", backend.LogSumExp, x, 0, axes)
}

// LogSumExpGrad is the gradient of [Reductions.LogSumExp]'s argument, dy * exp(x - y).
func (d Gradients) LogSumExpGrad(ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
	return d.rt.reduceGrad(ctx, "LogSumExpGrad", backend.LogSumExpGrad, dy, x, y, 0, axes)
}

// Var returns the variance over the axes: the sum of squared distances from the mean over the number of elements less the
// correction (torch.var, whose correction is 1). It is NaN or infinite where the correction takes all elements away.
func (r Reductions) Var(ctx context.Context, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return r.rt.reduce(ctx, "Var", backend.Var, x, correction, axes)
}

// VarGrad is the gradient of [Reductions.Var]'s argument.
func (d Gradients) VarGrad(ctx context.Context, dy, x *Tensor, correction float64, axes ...int) (*Tensor, error) {
	return d.rt.reduceGrad(ctx, "VarGrad", backend.VarGrad, dy, x, nil, correction, axes)
}

func (rt *Runtime) reduce(ctx context.Context, op string, s backend.Op, x *Tensor, c float64, axes []int) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	kept, shape, err := rt.planSum(op, x.shape, axes)
	switch {
	case err != nil:
		return nil, err
	case math.IsNaN(c):
		return nil, fmt.Errorf("tensor: %s: %w: the correction is NaN", op, ErrInvalid)
	case s <= backend.Max && x.bytes == 0 && elements(kept) > 0:
		return nil, fmt.Errorf("tensor: %s: %w: %v has no elements to choose from", op, ErrShape, x.shape)
	}
	return rt.result(ctx, op, x.dtype, shape, func(out *Tensor) error {
		call := rt.call(s, out, x)
		call.Plan, call.C[0] = rt.reduction(x.shape, kept), c
		return rt.backend.Do(ctx, call)
	})
}

func (rt *Runtime) reduceGrad(ctx context.Context, op string, s backend.Op, dy, x, y *Tensor, c float64, axes []int) (*Tensor, error) {
	ts := []*Tensor{dy, x}
	if s != backend.VarGrad {
		ts = append(ts, y)
	}
	in, err := rt.acquireFloats(op, ts...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	kept, shape, err := rt.planSum(op, x.shape, axes)
	if err != nil {
		return nil, err
	}
	for _, t := range append(ts[:1:1], ts[2:]...) {
		if !slices.Equal(t.shape, shape) && !slices.Equal(t.shape, kept) {
			return nil, fmt.Errorf("tensor: %s: %w: the result or its gradient is %v: want %v or %v for %v over axes %v", op, ErrShape, t.shape, shape, kept, x.shape, axes)
		}
	}
	return rt.result(ctx, op, x.dtype, x.shape, func(out *Tensor) error {
		call := rt.call(s, out, dy, x, y)
		call.Plan, call.C[0] = rt.reduction(x.shape, kept), c
		return rt.backend.Do(ctx, call)
	})
}
