package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// Abs returns |x| (torch.abs).
func (rt *Runtime) Abs(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.Abs, x, 0, 0)
}

// Sin returns the sine of x.
func (rt *Runtime) Sin(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.Sin, x, 0, 0)
}

// Cos returns the cosine of x.
func (rt *Runtime) Cos(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.Cos, x, 0, 0)
}

// Erf returns the error function of x (torch.erf).
func (rt *Runtime) Erf(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.Erf, x, 0, 0)
}

// Rsqrt returns 1 / sqrt(x) (torch.rsqrt).
func (rt *Runtime) Rsqrt(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.Rsqrt, x, 0, 0)
}

// GELU returns x times the normal distribution function of x (torch.nn.functional.gelu).
func (rt *Runtime) GELU(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.GELU, x, 0, 0)
}

// GELUTanh returns the approximation of [Runtime.GELU] by a hyperbolic tangent (approximate="tanh").
func (rt *Runtime) GELUTanh(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.GELUTanh, x, 0, 0)
}

// SiLU returns x times the sigmoid of x (torch.nn.functional.silu).
func (rt *Runtime) SiLU(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.SiLU, x, 0, 0)
}

// ELU returns x where it is positive, and alpha * (exp(x) - 1) elsewhere (torch.nn.functional.elu).
func (rt *Runtime) ELU(ctx context.Context, x *Tensor, alpha float64) (*Tensor, error) {
	return rt.apply(ctx, kernel.ELU, x, alpha, 0)
}

// Softplus returns log(1 + exp(beta*x)) / beta, and x where beta*x is above the threshold (torch.nn.functional.softplus).
func (rt *Runtime) Softplus(ctx context.Context, x *Tensor, beta, threshold float64) (*Tensor, error) {
	return rt.apply(ctx, kernel.Softplus, x, beta, threshold)
}

// LeakyReLU returns x where it is positive, and slope * x elsewhere (torch.nn.functional.leaky_relu).
func (rt *Runtime) LeakyReLU(ctx context.Context, x *Tensor, slope float64) (*Tensor, error) {
	return rt.apply(ctx, kernel.LeakyReLU, x, slope, 0)
}

// Hardtanh returns x brought between low and high (torch.nn.functional.hardtanh); low must not be above high. It is
// [Runtime.Clamp] with another gradient.
func (rt *Runtime) Hardtanh(ctx context.Context, x *Tensor, low, high float64) (*Tensor, error) {
	if low > high {
		return nil, fmt.Errorf("tensor: hardtanh: %w: the lower bound %v is above the upper one, %v", ErrInvalid, low, high)
	}
	return rt.apply(ctx, kernel.Hardtanh, x, low, high)
}

// LogSigmoid returns the logarithm of the sigmoid of x (torch.nn.functional.logsigmoid).
func (rt *Runtime) LogSigmoid(ctx context.Context, x *Tensor) (*Tensor, error) {
	return rt.apply(ctx, kernel.LogSigmoid, x, 0, 0)
}

// Clamp returns x brought between low and high (torch.clamp); an infinity is no bound. Where low is above high the result
// is high. NaN stays.
func (rt *Runtime) Clamp(ctx context.Context, x *Tensor, low, high float64) (*Tensor, error) {
	return rt.apply(ctx, kernel.Clamp, x, low, high)
}

func (rt *Runtime) apply(ctx context.Context, f kernel.Function, x *Tensor, c, d float64) (*Tensor, error) {
	in, err := rt.acquireFloats(f.Name(), x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if math.IsNaN(c) || math.IsNaN(d) {
		return nil, fmt.Errorf("tensor: %s: %w: a parameter is NaN", f.Name(), ErrInvalid)
	}
	out, err := rt.allocResult(ctx, f.Name(), &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.apply(f, out, x, c, d))
}
