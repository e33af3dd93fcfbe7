package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// These gradients take dst as those of gradient.go do: dy itself to work in place, or nil. x is the function's argument, y
// its result.

// AbsGrad is the gradient of [Runtime.Abs]'s argument: dy with the sign of x, and 0 at 0.
func (rt *Runtime) AbsGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Abs, dst, dy, x, 0, 0)
}

// SinGrad is the gradient of [Runtime.Sin]'s argument.
func (rt *Runtime) SinGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Sin, dst, dy, x, 0, 0)
}

// CosGrad is the gradient of [Runtime.Cos]'s argument.
func (rt *Runtime) CosGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Cos, dst, dy, x, 0, 0)
}

// ErfGrad is the gradient of [Runtime.Erf]'s argument.
func (rt *Runtime) ErfGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Erf, dst, dy, x, 0, 0)
}

// RsqrtGrad is the gradient of [Runtime.Rsqrt]'s argument, of the result: -dy/2 * y*y*y.
func (rt *Runtime) RsqrtGrad(ctx context.Context, dst, dy, y *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Rsqrt, dst, dy, y, 0, 0)
}

// GELUGrad is the gradient of [Runtime.GELU]'s argument.
func (rt *Runtime) GELUGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.GELU, dst, dy, x, 0, 0)
}

// GELUTanhGrad is the gradient of [Runtime.GELUTanh]'s argument.
func (rt *Runtime) GELUTanhGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.GELUTanh, dst, dy, x, 0, 0)
}

// SiLUGrad is the gradient of [Runtime.SiLU]'s argument.
func (rt *Runtime) SiLUGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.SiLU, dst, dy, x, 0, 0)
}

// ELUGrad is the gradient of [Runtime.ELU]'s argument: at 0 it is alpha * dy.
func (rt *Runtime) ELUGrad(ctx context.Context, dst, dy, x *Tensor, alpha float64) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.ELU, dst, dy, x, alpha, 0)
}

// SoftplusGrad is the gradient of [Runtime.Softplus]'s argument.
func (rt *Runtime) SoftplusGrad(ctx context.Context, dst, dy, x *Tensor, beta, threshold float64) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Softplus, dst, dy, x, beta, threshold)
}

// LeakyReLUGrad is the gradient of [Runtime.LeakyReLU]'s argument x: dy where x is positive, and slope * dy elsewhere. If the
// slope is not negative the result will do in the place of x.
func (rt *Runtime) LeakyReLUGrad(ctx context.Context, dst, dy, x *Tensor, slope float64) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.LeakyReLU, dst, dy, x, slope, 0)
}

// HardtanhGrad is the gradient of [Runtime.Hardtanh]'s argument, of the result: dy between the bounds, and 0 at them.
func (rt *Runtime) HardtanhGrad(ctx context.Context, dst, dy, y *Tensor, low, high float64) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Hardtanh, dst, dy, y, low, high)
}

// LogSigmoidGrad is the gradient of [Runtime.LogSigmoid]'s argument.
func (rt *Runtime) LogSigmoidGrad(ctx context.Context, dst, dy, x *Tensor) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.LogSigmoid, dst, dy, x, 0, 0)
}

// ClampGrad is the gradient of [Runtime.Clamp]'s argument: dy between the bounds and at them, 0 elsewhere.
func (rt *Runtime) ClampGrad(ctx context.Context, dst, dy, x *Tensor, low, high float64) (*Tensor, error) {
	return rt.applyGrad(ctx, kernel.Clamp, dst, dy, x, low, high)
}

func (rt *Runtime) applyGrad(ctx context.Context, f kernel.Function, dst, dy, saved *Tensor, c, d float64) (*Tensor, error) {
	op := f.GradName()
	in, err := rt.acquireFloats(op, dy, saved)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := sameShape(op, dy, saved); err != nil {
		return nil, err
	}
	return rt.into(ctx, op, dst, dy, []*Tensor{saved}, func(out *Tensor) error {
		return rt.kernels.applyGrad(f, out, dy, saved, c, d)
	})
}
