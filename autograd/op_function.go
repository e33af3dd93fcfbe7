package autograd

import "github.com/cistern-ml/cistern/tensor/fn"

// Abs returns |x| (torch.abs). Its gradient at 0 is 0.
func (t *Tape) Abs(x *Variable) *Variable { return t.Apply(fn.Abs, x) }

// Sin returns the sine of x.
func (t *Tape) Sin(x *Variable) *Variable { return t.Apply(fn.Sin, x) }

// Cos returns the cosine of x.
func (t *Tape) Cos(x *Variable) *Variable { return t.Apply(fn.Cos, x) }

// Erf returns the error function of x (torch.erf).
func (t *Tape) Erf(x *Variable) *Variable { return t.Apply(fn.Erf, x) }

// Rsqrt returns 1 / sqrt(x) (torch.rsqrt). The backward pass keeps the result.
func (t *Tape) Rsqrt(x *Variable) *Variable { return t.Apply(fn.Rsqrt, x) }

// GELU returns x times the normal distribution function of x (torch.nn.functional.gelu).
func (t *Tape) GELU(x *Variable) *Variable { return t.Apply(fn.GELU, x) }

// GELUTanh returns the approximation of GELU by a hyperbolic tangent (approximate="tanh").
func (t *Tape) GELUTanh(x *Variable) *Variable { return t.Apply(fn.GELUTanh, x) }

// SiLU returns x times the sigmoid of x (torch.nn.functional.silu).
func (t *Tape) SiLU(x *Variable) *Variable { return t.Apply(fn.SiLU, x) }

// LogSigmoid returns the logarithm of the sigmoid of x (torch.nn.functional.logsigmoid).
func (t *Tape) LogSigmoid(x *Variable) *Variable { return t.Apply(fn.LogSigmoid, x) }

// ELU returns x where it is positive, and alpha * (exp(x) - 1) elsewhere (torch.nn.functional.elu;
// its alpha is 1).
func (t *Tape) ELU(x *Variable, alpha float64) *Variable {
	return t.Apply(fn.ELU(alpha), x)
}

// Softplus returns log(1 + exp(beta*x)) / beta, and x where beta*x is above the threshold
// (torch.nn.functional.softplus; its beta is 1 and its threshold 20).
func (t *Tape) Softplus(x *Variable, beta, threshold float64) *Variable {
	return t.Apply(fn.Softplus(beta, threshold), x)
}

// LeakyReLU returns x where it is positive, and slope * x elsewhere
// (torch.nn.functional.leaky_relu; its slope is 0.01). The backward pass keeps the result, not x,
// unless the slope is negative.
func (t *Tape) LeakyReLU(x *Variable, slope float64) *Variable {
	f := fn.LeakyReLU(slope)
	f.OfResult = slope >= 0
	return t.Apply(f, x)
}

// Hardtanh returns x clamped to [low, high] (torch.nn.functional.hardtanh; its bounds are -1 and
// 1). The backward pass keeps the result, not x; the gradient at the bounds is 0.
func (t *Tape) Hardtanh(x *Variable, low, high float64) *Variable {
	return t.Apply(fn.Hardtanh(low, high), x)
}

// Clamp returns x clamped to [low, high] (torch.clamp). A bound may be infinite. At the bounds the
// gradient passes.
func (t *Tape) Clamp(x *Variable, low, high float64) *Variable {
	return t.Apply(fn.Clamp(low, high), x)
}

// Exp returns e to the power of x.
func (t *Tape) Exp(x *Variable) *Variable { return t.Apply(fn.Exp, x) }

// Log returns the natural logarithm of x.
func (t *Tape) Log(x *Variable) *Variable { return t.Apply(fn.Log, x) }

// Tanh returns the hyperbolic tangent of x.
func (t *Tape) Tanh(x *Variable) *Variable { return t.Apply(fn.Tanh, x) }

// Sigmoid returns 1 / (1 + exp(-x)).
func (t *Tape) Sigmoid(x *Variable) *Variable { return t.Apply(fn.Sigmoid, x) }

// ReLU returns max(x, 0). The backward pass keeps the result, not x; its gradient at 0 is 0.
func (t *Tape) ReLU(x *Variable) *Variable { return t.Apply(fn.ReLU, x) }

// Sqrt returns the square root of x.
func (t *Tape) Sqrt(x *Variable) *Variable { return t.Apply(fn.Sqrt, x) }

// Square returns x * x.
func (t *Tape) Square(x *Variable) *Variable { return t.Apply(fn.Square, x) }

// Sign returns -1, 0 or 1, as x is negative, zero or NaN, or positive (torch.sign). The gradient of
// x is 0, here and for Floor, Ceil and Round.
func (t *Tape) Sign(x *Variable) *Variable { return t.Apply(fn.Sign, x) }

// Floor returns the greatest whole number that is not above x (torch.floor).
func (t *Tape) Floor(x *Variable) *Variable { return t.Apply(fn.Floor, x) }

// Ceil returns the least whole number that is not below x (torch.ceil).
func (t *Tape) Ceil(x *Variable) *Variable { return t.Apply(fn.Ceil, x) }

// Round returns the whole number nearest to x, the even one of two (torch.round).
func (t *Tape) Round(x *Variable) *Variable { return t.Apply(fn.Round, x) }

// Log1p returns the logarithm of 1 + x, accurate also for an x near 0 (torch.log1p).
func (t *Tape) Log1p(x *Variable) *Variable { return t.Apply(fn.Log1p, x) }

// Expm1 returns e to the power of x, less 1, accurate also for an x near 0 (torch.expm1). The
// backward pass keeps the result.
func (t *Tape) Expm1(x *Variable) *Variable { return t.Apply(fn.Expm1, x) }
