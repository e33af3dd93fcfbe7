package reference

import "math"

// Function is an elementwise function as torch.nn.functional documents it, with its derivative. D
// takes what the gradient keeps: the argument or the result. Terms and DTerms return the sum of the
// magnitudes of the terms of F and D; if they are nil, it is the magnitude of the value itself.
type Function struct {
	F, D, Terms, DTerms func(x float64) float64
	// Constant reports where the gradient is 0, whatever it is multiplied by; nil means nowhere.
	Constant func(x float64) bool
}

// Functions holds the functions of package kernel that have a gradient, by name. Each entry takes
// the function's parameters.
var Functions = map[string]func(c, d float64) Function{
	"abs": of(Abs), "sin": of(Sin), "cos": of(Cos), "erf": of(Erf), "rsqrt": of(Rsqrt), "gelu": of(GELU), "gelu tanh": of(GELUTanh), "silu": of(SiLU),
	"logsigmoid": of(LogSigmoid), "softplus": Softplus,
	"celu": CELU,
	"sign": of(Sign), "floor": whole(math.Floor), "ceil": whole(math.Ceil), "round": whole(Even), "log1p": of(Log1p), "expm1": of(Expm1),
	"elu":        func(alpha, _ float64) Function { return ELU(alpha) },
	"leaky relu": func(slope, _ float64) Function { return LeakyReLU(slope) },
	"clamp":      func(low, high float64) Function { return Clamp(low, high, false) },
	"hardtanh":   func(low, high float64) Function { return Clamp(low, high, true) },
}

func of(f func() Function) func(c, d float64) Function {
	return func(float64, float64) Function { return f() }
}

// Density is the density of the standard normal distribution.
func Density(x float64) float64 { return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi) }

// GELU is x Φ(x).
func GELU() Function {
	return Function{
		F:      func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) },
		D:      func(x float64) float64 { return (1+math.Erf(x/math.Sqrt2))/2 + x*Density(x) },
		Terms:  math.Abs,
		DTerms: func(x float64) float64 { return 1 + math.Abs(x)*Density(x) },
	}
}

// GELUTanh is GELU with a hyperbolic tangent.
func GELUTanh() Function {
	inner := func(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*math.Pow(x, 3)) }
	outer := func(x float64) float64 {
		sech := 1 / math.Cosh(inner(x))
		return x / 2 * (sech * sech) * math.Sqrt(2/math.Pi) * (1 + 3*0.044715*x*x)
	}
	return Function{
		F:      func(x float64) float64 { return x / 2 * (1 + math.Tanh(inner(x))) },
		D:      func(x float64) float64 { return (1+math.Tanh(inner(x)))/2 + outer(x) },
		Terms:  math.Abs,
		DTerms: func(x float64) float64 { return 1 + x*x }, // multiplies the rounding of a tangent
	}
}

// SiLU is x times the logistic function.
func SiLU() Function {
	bend := func(x float64) float64 { return x * Sigmoid(x) * Sigmoid(-x) }
	return Function{
		F:      func(x float64) float64 { return x * Sigmoid(x) },
		D:      func(x float64) float64 { return Sigmoid(x) + bend(x) },
		DTerms: func(x float64) float64 { return Sigmoid(x) * (1 + math.Abs(x)) },
	}
}

// ELU is alpha(exp(x)-1) up to 0.
func ELU(alpha float64) Function {
	return Function{
		F: func(x float64) float64 {
			if x > 0 {
				return x
			}
			return alpha * math.Expm1(x)
		},
		D: func(x float64) float64 {
			if !(x <= 0) { // NaN is not constant, as in ReLU
				return 1
			}
			return alpha * Exp(x)
		},
	}
}

// CELU is alpha(exp(x/alpha)-1) up to 0.
func CELU(alpha, _ float64) Function {
	return Function{
		F: func(x float64) float64 {
			if x > 0 {
				return x
			}
			return alpha * math.Expm1(x/alpha)
		},
		D: func(x float64) float64 {
			if !(x <= 0) {
				return 1
			}
			return Exp(x / alpha)
		},
	}
}

// Softplus is log(1+exp(beta x))/beta up to the threshold.
func Softplus(beta, threshold float64) Function {
	return Function{
		F: func(x float64) float64 {
			if x*beta > threshold {
				return x
			}
			z := beta * x
			if z > 700 { // exp(z) may overflow, and 1 is negligible
				return z / beta
			}
			return math.Log1p(Exp(z)) / beta
		},
		D: func(x float64) float64 {
			if x*beta > threshold {
				return 1
			}
			return Sigmoid(beta * x)
		},
	}
}

// LeakyReLU is slope·x up to 0.
func LeakyReLU(slope float64) Function {
	d := func(x float64) float64 {
		if x > 0 {
			return 1
		}
		return slope
	}
	return Function{F: func(x float64) float64 { return x * d(x) }, D: d}
}

// LogSigmoid is the logarithm of the logistic function.
func LogSigmoid() Function {
	return Function{
		F: func(x float64) float64 {
			if x < 0 {
				return x - math.Log1p(Exp(x))
			}
			return -math.Log1p(Exp(-x))
		},
		D: func(x float64) float64 { return Sigmoid(-x) },
	}
}

// Clamp is the nearest number between the bounds. The gradient passes at the bounds, unless hard is
// set.
func Clamp(low, high float64, hard bool) Function {
	inside := func(x float64) bool { return x >= low && x <= high }
	if hard {
		inside = func(x float64) bool { return x != x || x > low && x < high }
	}
	return Function{
		F: func(x float64) float64 {
			if math.IsNaN(x) {
				return x
			}
			return math.Min(math.Max(x, low), high)
		},
		D:        func(float64) float64 { return 1 },
		Constant: func(x float64) bool { return !inside(x) },
	}
}

// Abs is the magnitude.
func Abs() Function {
	return Function{F: math.Abs, D: func(x float64) float64 {
		switch {
		case x > 0:
			return 1
		case x < 0:
			return -1
		}
		return 0
	}}
}

// Sin is the sine.
func Sin() Function { return Function{F: math.Sin, D: math.Cos, Terms: turned, DTerms: one} }

// Cos is the cosine.
func Cos() Function {
	return Function{F: math.Cos, D: func(x float64) float64 { return -math.Sin(x) }, Terms: one, DTerms: turned}
}

// turned returns the magnitude to which rounding errors of a sine are relative. For large arguments
// it is 1, because the argument is reduced first.
func turned(x float64) float64 {
	if math.Abs(x) < 1 {
		return math.Abs(x)
	}
	return 1
}

func one(float64) float64 { return 1 }

// Erf is the error function.
func Erf() Function {
	return Function{F: math.Erf, D: func(x float64) float64 { return 2 / math.Sqrt(math.Pi) * math.Exp(-x*x) }}
}

// Rsqrt is the reciprocal of the square root. Its derivative takes the result.
func Rsqrt() Function {
	return Function{F: func(x float64) float64 { return 1 / math.Sqrt(x) }, D: func(y float64) float64 { return -y / 2 * y * y }}
}

// Sign is the quotient of a number and its magnitude.
func Sign() Function {
	return Function{Constant: always, F: func(x float64) float64 {
		if x == 0 || math.IsNaN(x) {
			return 0
		}
		return math.Copysign(1, x)
	}}
}

// whole returns a function with whole numbers as results.
func whole(f func(float64) float64) func(c, d float64) Function {
	return of(func() Function { return Function{F: f, Constant: always} })
}

func always(float64) bool { return true }

// Even returns the nearest whole number, and of two the even one. Numbers of magnitude 2^52 and
// above are whole, and adding 2^52 rounds the fraction off a smaller one.
func Even(x float64) float64 {
	const all = 1 << 52
	if a := math.Abs(x); a < all {
		return math.Copysign(a+all-all, x)
	}
	return x
}

// Log1p is log(1+x).
func Log1p() Function {
	return Function{F: math.Log1p, D: func(x float64) float64 { return 1 / (1 + x) }}
}

// Expm1 is exp(x)-1. Its derivative takes the result.
func Expm1() Function {
	return Function{F: math.Expm1, D: func(y float64) float64 { return y + 1 }}
}

// Apply applies the function to every element.
func (f Function) Apply(x Array) Result {
	r := Unary(x, f.F)
	if f.Terms != nil {
		for i, v := range x.Data {
			r.Size[i] = f.Terms(v)
		}
	}
	return r
}

// Gradient returns dy times the derivative at saved.
func (f Function) Gradient(dy, saved Array) Result {
	r := newResult(dy.Shape)
	for i, g := range dy.Data {
		v := saved.Data[i]
		if f.Constant != nil && f.Constant(v) {
			continue
		}
		r.Data[i] = g * f.D(v)
		r.Size[i] = math.Abs(r.Data[i])
		if f.DTerms != nil {
			r.Size[i] = math.Abs(g) * f.DTerms(v)
		}
	}
	return r
}

// Meet applies f to the elements of arrays that are broadcast to shape.
func Meet(shape []int, f func(elements []float64) float64, arrays ...Array) Result {
	r := newResult(shape)
	met := make([]float64, len(arrays))
	each(shape, func(i int, index []int) {
		for k, a := range arrays {
			met[k] = a.Data[place(a.Shape, index)]
		}
		r.Data[i] = f(met)
		r.Size[i] = math.Abs(r.Data[i])
	})
	return r
}
