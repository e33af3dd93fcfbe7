package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Abs returns |x| (torch.abs). Its gradient at 0 is 0.
func (t *Tape) Abs(x *Variable) *Variable {
	return t.unary("Abs", x, (*tensor.Runtime).Abs, (*tensor.Runtime).AbsGrad, false)
}

// Sin returns the sine of x.
func (t *Tape) Sin(x *Variable) *Variable {
	return t.unary("Sin", x, (*tensor.Runtime).Sin, (*tensor.Runtime).SinGrad, false)
}

// Cos returns the cosine of x.
func (t *Tape) Cos(x *Variable) *Variable {
	return t.unary("Cos", x, (*tensor.Runtime).Cos, (*tensor.Runtime).CosGrad, false)
}

// Erf returns the error function of x (torch.erf).
func (t *Tape) Erf(x *Variable) *Variable {
	return t.unary("Erf", x, (*tensor.Runtime).Erf, (*tensor.Runtime).ErfGrad, false)
}

// Rsqrt returns 1 / sqrt(x) (torch.rsqrt). The backward pass keeps the result.
func (t *Tape) Rsqrt(x *Variable) *Variable {
	return t.unary("Rsqrt", x, (*tensor.Runtime).Rsqrt, (*tensor.Runtime).RsqrtGrad, true)
}

// GELU returns x times the normal distribution function of x (torch.nn.functional.gelu).
func (t *Tape) GELU(x *Variable) *Variable {
	return t.unary("GELU", x, (*tensor.Runtime).GELU, (*tensor.Runtime).GELUGrad, false)
}

// GELUTanh returns the approximation of GELU by a hyperbolic tangent (approximate="tanh").
func (t *Tape) GELUTanh(x *Variable) *Variable {
	return t.unary("GELUTanh", x, (*tensor.Runtime).GELUTanh, (*tensor.Runtime).GELUTanhGrad, false)
}

// SiLU returns x times the sigmoid of x (torch.nn.functional.silu).
func (t *Tape) SiLU(x *Variable) *Variable {
	return t.unary("SiLU", x, (*tensor.Runtime).SiLU, (*tensor.Runtime).SiLUGrad, false)
}

// LogSigmoid returns the logarithm of the sigmoid of x (torch.nn.functional.logsigmoid).
func (t *Tape) LogSigmoid(x *Variable) *Variable {
	return t.unary("LogSigmoid", x, (*tensor.Runtime).LogSigmoid, (*tensor.Runtime).LogSigmoidGrad, false)
}

// ELU returns x where it is positive, and alpha * (exp(x) - 1) elsewhere (torch.nn.functional.elu; its alpha is 1).
func (t *Tape) ELU(x *Variable, alpha float64) *Variable {
	return t.unary("ELU", x, func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.ELU(ctx, x, alpha)
	}, func(rt *tensor.Runtime, ctx context.Context, dst, dy, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.ELUGrad(ctx, dst, dy, x, alpha)
	}, false)
}

// Softplus returns log(1 + exp(beta*x)) / beta, and x where beta*x is above the threshold (torch.nn.functional.softplus; its
// beta is 1 and its threshold 20).
func (t *Tape) Softplus(x *Variable, beta, threshold float64) *Variable {
	return t.unary("Softplus", x, func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Softplus(ctx, x, beta, threshold)
	}, func(rt *tensor.Runtime, ctx context.Context, dst, dy, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.SoftplusGrad(ctx, dst, dy, x, beta, threshold)
	}, false)
}

// LeakyReLU returns x where it is positive, and slope * x elsewhere (torch.nn.functional.leaky_relu; its slope is 0.01). The
// backward pass keeps the result, not x, unless the slope is negative.
func (t *Tape) LeakyReLU(x *Variable, slope float64) *Variable {
	return t.unary("LeakyReLU", x, func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.LeakyReLU(ctx, x, slope)
	}, func(rt *tensor.Runtime, ctx context.Context, dst, dy, saved *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.LeakyReLUGrad(ctx, dst, dy, saved, slope)
	}, slope >= 0)
}

// Hardtanh returns x brought between low and high (torch.nn.functional.hardtanh; its bounds are -1 and 1). The backward pass
// keeps the result, not x; the gradient at the bounds is 0.
func (t *Tape) Hardtanh(x *Variable, low, high float64) *Variable {
	return t.unary("Hardtanh", x, func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Hardtanh(ctx, x, low, high)
	}, func(rt *tensor.Runtime, ctx context.Context, dst, dy, y *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.HardtanhGrad(ctx, dst, dy, y, low, high)
	}, true)
}

// Clamp returns x brought between low and high (torch.clamp); an infinity is no bound. At the bounds the gradient passes.
func (t *Tape) Clamp(x *Variable, low, high float64) *Variable {
	return t.unary("Clamp", x, func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Clamp(ctx, x, low, high)
	}, func(rt *tensor.Runtime, ctx context.Context, dst, dy, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.ClampGrad(ctx, dst, dy, x, low, high)
	}, false)
}
