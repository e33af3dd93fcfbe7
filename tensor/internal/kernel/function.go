package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Function is an elementwise function of one argument, with its gradient and up to two parameters.
type Function uint8

// The functions, in the order of function.cu. Their parameters are c and d.
const (
	Abs Function = iota
	Sin
	Cos
	Erf
	Rsqrt
	GELU
	GELUTanh
	SiLU
	ELU        // c: alpha
	Softplus   // c: beta, d: threshold
	LeakyReLU  // c: the slope of negative numbers
	Hardtanh   // between c and d
	LogSigmoid // of log-sigmoid
	Clamp      // between c and d
)

// Name is the function's name in launches and errors.
func (f Function) Name() string { return functionNames[f] }

// GradName is that of its gradient.
func (f Function) GradName() string { return functionGradNames[f] }

var (
	functionNames = [...]string{"abs", "sin", "cos", "erf", "rsqrt", "gelu", "gelu tanh", "silu", "elu", "softplus", "leaky relu", "hardtanh",
		"logsigmoid", "clamp"}
	functionGradNames = func() (names [len(functionNames)]string) {
		for i, name := range functionNames {
			names[i] = name + " grad"
		}
		return names
	}()
)

// vectorFunction and vectorGradient are those that package simd has.
var (
	vectorFunction = [...]simd.Unary{Abs: simd.Abs, Erf: simd.Erf, Rsqrt: simd.Rsqrt, GELU: simd.GELU, GELUTanh: simd.GELUTanh, SiLU: simd.SiLU,
		ELU: simd.ELU, Softplus: simd.Softplus, LeakyReLU: simd.LeakyReLU, Hardtanh: simd.Clamp, LogSigmoid: simd.LogSigmoid, Clamp: simd.Clamp}
	vectorGradient = [...]simd.Gradient{Abs: simd.AbsGrad, Erf: simd.ErfGrad, Rsqrt: simd.RsqrtGrad, GELU: simd.GELUGrad,
		GELUTanh: simd.GELUTanhGrad, SiLU: simd.SiLUGrad, ELU: simd.ELUGrad, Softplus: simd.SoftplusGrad, LeakyReLU: simd.LeakyReLUGrad,
		Hardtanh: simd.HardtanhGrad, LogSigmoid: simd.LogSigmoidGrad, Clamp: simd.ClampGrad}
)

// Apply sets dst[i] = f(x[i]), computed in float64.
func Apply[T Float](f Function, dst, x []T, c, d float64) {
	if g := simd.UnaryOf[T](vectorFunction[f]); g != nil {
		mapVector(g, grainVectorMath, dst, x, T(c), T(d))
		return
	}
	of := f.value(float64(T(c)), float64(T(d)))
	split(len(dst), grainMath, func(lo, hi int) {
		for i, v := range x[lo:hi] {
			dst[lo+i] = T(of(float64(v)))
		}
	})
}

// ApplyGrad sets dst[i] to the gradient of f's argument, computed in float64: dy[i] times the derivative. saved is the
// argument, or for Rsqrt, LeakyReLU and Hardtanh the result.
func ApplyGrad[T Float](f Function, dst, dy, saved []T, c, d float64) {
	if g := simd.GradientOf[T](vectorGradient[f]); g != nil {
		split(len(dst), grainVectorMath, func(lo, hi int) {
			for ; lo < hi; lo += most {
				g(&dst[lo], &dy[lo], &saved[lo], min(hi-lo, most), T(c), T(d))
			}
		})
		return
	}
	of := f.gradient(float64(T(c)), float64(T(d)))
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = T(of(float64(dy[i]), float64(saved[i])))
		}
	})
}

const (
	tanhScale = math.Sqrt2 / math.SqrtPi // of GELU's approximation
	tanhCubic = 0.044715
)

// value is the function with its parameters.
func (f Function) value(c, d float64) func(x float64) float64 {
	switch f {
	case Abs:
		return math.Abs
	case Sin:
		return math.Sin
	case Cos:
		return math.Cos
	case Erf:
		return math.Erf
	case Rsqrt:
		return func(x float64) float64 { return 1 / math.Sqrt(x) }
	case GELU:
		return func(x float64) float64 { return x * normal(x) }
	case GELUTanh:
		return func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(tanhScale*(x+tanhCubic*x*x*x))) }
	case SiLU:
		return func(x float64) float64 { return x * sigmoid(x) }
	case ELU:
		return func(x float64) float64 {
			if x <= 0 {
				return c * math.Expm1(x)
			}
			return x
		}
	case Softplus:
		return func(x float64) float64 {
			if x*c > d {
				return x
			}
			return math.Log1p(exp(x*c)) / c
		}
	case LeakyReLU:
		return func(x float64) float64 {
			if x > 0 {
				return x
			}
			return x * c
		}
	case LogSigmoid:
		return func(x float64) float64 { return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x))) }
	default: // Hardtanh and Clamp: NaN stays
		return func(x float64) float64 {
			if x < c {
				x = c
			}
			if x > d {
				x = d
			}
			return x
		}
	}
}

// gradient is dy times the derivative, where v is the argument or the result. Where a function is constant it is 0, whatever
// dy is.
func (f Function) gradient(c, d float64) func(dy, v float64) float64 {
	switch f {
	case Abs:
		return func(dy, x float64) float64 {
			switch {
			case x > 0:
				return dy
			case x < 0:
				return -dy
			}
			return 0 * dy
		}
	case Sin:
		return func(dy, x float64) float64 { return dy * math.Cos(x) }
	case Cos:
		return func(dy, x float64) float64 { return dy * -math.Sin(x) }
	case Erf:
		return func(dy, x float64) float64 { return dy * (2 / math.SqrtPi * math.Exp(-x*x)) }
	case Rsqrt:
		return func(dy, y float64) float64 { return dy * (-0.5 * y * y * y) }
	case GELU:
		return func(dy, x float64) float64 {
			return dy * (normal(x) + x*math.Exp(-0.5*x*x)/(math.Sqrt2*math.SqrtPi))
		}
	case GELUTanh:
		return func(dy, x float64) float64 {
			t := math.Tanh(tanhScale * (x + tanhCubic*x*x*x))
			return dy * (0.5*(1+t) + 0.5*x*((1-t)*(1+t))*(tanhScale*(1+3*tanhCubic*x*x)))
		}
	case SiLU:
		return func(dy, x float64) float64 {
			s := sigmoid(x)
			return dy * (s * (1 + x*(1-s)))
		}
	case ELU:
		return func(dy, x float64) float64 {
			if x <= 0 {
				return dy * (c * math.Exp(x))
			}
			return dy
		}
	case Softplus:
		return func(dy, x float64) float64 {
			if x*c > d {
				return dy
			}
			return dy * sigmoid(x*c)
		}
	case LeakyReLU:
		return func(dy, y float64) float64 {
			if y > 0 {
				return dy
			}
			return dy * c
		}
	case Hardtanh:
		return func(dy, y float64) float64 {
			if y <= c || y >= d {
				return 0
			}
			return dy
		}
	case LogSigmoid:
		return func(dy, x float64) float64 { return dy * sigmoid(-x) }
	default: // Clamp: the bounds themselves pass
		return func(dy, x float64) float64 {
			if x >= c && x <= d {
				return dy
			}
			return 0
		}
	}
}

// normal is the distribution function of the standard normal distribution, without cancellation for negative numbers.
func normal(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }
