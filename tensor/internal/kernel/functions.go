package kernel

import (
	"math"
	"strings"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Function is an elementwise function of one argument, with its gradient and up to two parameters,
// c and d. Command gen generates the operation, the methods of tensor.Elementwise and the list for
// GPUs from it. The GPU's version of Value is in ptx/function.h, and the reference for tests in
// package reference.
type Function struct {
	Name    string   // in errors, launches and profiles
	Go      string   // the method, if it differs from the words of Name
	Doc     string   // of the method, after its name
	Params  []string // the method's names for c and d
	Ordered bool     // c must not be above d

	// Value is the function: computed in float64 and rounded once.
	Value func(x, c, d float64) float64
	// Slope is dy times the derivative at v, which is the argument or, with OfResult, the result.
	// Where the function is constant, Slope is 0 whatever dy is. If it is nil, Zip is the gradient.
	Slope    func(dy, v, c, d float64) float64
	OfResult bool
	GradDoc  string // the gradient in words; "" if the derivative is obvious
	// Zip names the operation of dy and v that is the gradient of a function without a Slope.
	Zip string

	vector      simd.Unary
	vectorSlope simd.Gradient
	cheap       bool // selects the smaller cost per element for the grain
	loop        loop // bit-identical to Value; empty if there is none
}

// Method returns the function's name as a method, such as GELUTanh for "gelu tanh".
func (f *Function) Method() string {
	if f.Go != "" {
		return f.Go
	}
	name := ""
	for _, word := range strings.Fields(f.Name) {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// loop is a function without calls, in plain Go.
type loop struct {
	single func(dst, x []float32, c float32)
	double func(dst, x []float64, c float64)
}

// Functions are the elementwise functions, in the order of their codes. Those with a Slope come
// last.
var Functions = []Function{
	{Name: "neg", Doc: "returns -x.", Value: func(x, _, _ float64) float64 { return -x }, vector: simd.Neg, cheap: true, loop: loop{neg[float32], neg[float64]}},
	{Name: "exp", Doc: "returns e to the power of x.", Zip: "mul", OfResult: true, Value: func(x, _, _ float64) float64 { return exp(x) }, vector: simd.Exp},
	{Name: "log", Doc: "returns the natural logarithm of x.", Zip: "div", Value: func(x, _, _ float64) float64 { return log(x) }, vector: simd.Log},
	{Name: "tanh", Doc: "returns the hyperbolic tangent of x.", Zip: "tanh grad", OfResult: true, Value: func(x, _, _ float64) float64 { return math.Tanh(x) }, vector: simd.Tanh},
	{Name: "sigmoid", Doc: "returns 1 / (1 + exp(-x)).", Zip: "sigmoid grad", OfResult: true, Value: func(x, _, _ float64) float64 { return sigmoid(x) }, vector: simd.Sigmoid},
	{Name: "relu", Go: "ReLU", Doc: "returns max(x, 0); NaN stays NaN.", Zip: "relu grad", OfResult: true, Value: func(x, _, _ float64) float64 {
		if x < 0 {
			return 0
		}
		return x
	}, vector: simd.ReLU, cheap: true, loop: loop{relu[float32], relu[float64]}},
	{Name: "sqrt", Doc: "returns the square root of x.", Zip: "sqrt grad", OfResult: true, Value: func(x, _, _ float64) float64 { return math.Sqrt(x) }, vector: simd.Sqrt, cheap: true},
	{Name: "square", Doc: "returns x * x.", Zip: "square grad", Value: func(x, _, _ float64) float64 { return x * x }, vector: simd.Square, cheap: true, loop: loop{square[float32], square[float64]}},
	{Name: "add scalar", Doc: "returns x + c.", Params: []string{"c"}, Value: func(x, c, _ float64) float64 { return x + c }, vector: simd.AddConst, cheap: true, loop: loop{addScalar[float32], addScalar[float64]}},
	{Name: "mul scalar", Doc: "returns x * c.", Params: []string{"c"}, Value: func(x, c, _ float64) float64 { return x * c }, vector: simd.MulConst, cheap: true, loop: loop{mulScalar[float32], mulScalar[float64]}},
	{Name: "pow scalar", Doc: "returns x to the power of c.", Params: []string{"c"}, Value: func(x, c, _ float64) float64 { return pow(x, c) }},

	{Name: "abs", Doc: "returns |x| (torch.abs).", GradDoc: "dy with the sign of x, and 0 at 0", Value: func(x, _, _ float64) float64 { return math.Abs(x) },
		Slope: func(dy, x, _, _ float64) float64 {
			switch {
			case x > 0:
				return dy
			case x < 0:
				return -dy
			}
			return 0 * dy
		}, vector: simd.Abs, vectorSlope: simd.AbsGrad},
	{Name: "sin", Doc: "returns the sine of x.", Value: func(x, _, _ float64) float64 { return math.Sin(x) }, Slope: func(dy, x, _, _ float64) float64 { return dy * math.Cos(x) }},
	{Name: "cos", Doc: "returns the cosine of x.", Value: func(x, _, _ float64) float64 { return math.Cos(x) }, Slope: func(dy, x, _, _ float64) float64 { return dy * -math.Sin(x) }},
	{Name: "erf", Doc: "returns the error function of x (torch.erf).", Value: func(x, _, _ float64) float64 { return math.Erf(x) },
		Slope: func(dy, x, _, _ float64) float64 { return dy * (2 / math.SqrtPi * math.Exp(-x*x)) }, vector: simd.Erf, vectorSlope: simd.ErfGrad},
	{Name: "rsqrt", Doc: "returns 1 / sqrt(x) (torch.rsqrt).", GradDoc: "-dy/2 * y*y*y", Value: func(x, _, _ float64) float64 { return 1 / math.Sqrt(x) },
		Slope: func(dy, y, _, _ float64) float64 { return dy * (-0.5 * y * y * y) }, OfResult: true, vector: simd.Rsqrt, vectorSlope: simd.RsqrtGrad},
	{Name: "gelu", Go: "GELU", Doc: "returns x times the normal distribution function of x (torch.nn.functional.gelu).",
		Value: func(x, _, _ float64) float64 { return x * normal(x) },
		Slope: func(dy, x, _, _ float64) float64 {
			return dy * (normal(x) + x*math.Exp(-0.5*x*x)/(math.Sqrt2*math.SqrtPi))
		},
		vector: simd.GELU, vectorSlope: simd.GELUGrad},
	{Name: "gelu tanh", Go: "GELUTanh", Doc: "returns the approximation of [Elementwise.GELU] by a hyperbolic tangent (approximate=\"tanh\").",
		Value: func(x, _, _ float64) float64 { return 0.5 * x * (1 + math.Tanh(tanhScale*(x+tanhCubic*x*x*x))) },
		Slope: func(dy, x, _, _ float64) float64 {
			t := math.Tanh(tanhScale * (x + tanhCubic*x*x*x))
			return dy * (0.5*(1+t) + 0.5*x*((1-t)*(1+t))*(tanhScale*(1+3*tanhCubic*x*x)))
		}, vector: simd.GELUTanh, vectorSlope: simd.GELUTanhGrad},
	{Name: "silu", Go: "SiLU", Doc: "returns x times the sigmoid of x (torch.nn.functional.silu).", Value: func(x, _, _ float64) float64 { return x * sigmoid(x) },
		Slope: func(dy, x, _, _ float64) float64 {
			s := sigmoid(x)
			return dy * (s * (1 + x*(1-s)))
		}, vector: simd.SiLU, vectorSlope: simd.SiLUGrad},
	{Name: "elu", Go: "ELU", Doc: "returns x where it is positive, and alpha * (exp(x) - 1) elsewhere (torch.nn.functional.elu).", Params: []string{"alpha"},
		GradDoc: "alpha * dy at 0",
		Value: func(x, alpha, _ float64) float64 {
			if x <= 0 {
				return alpha * math.Expm1(x)
			}
			return x
		},
		Slope: func(dy, x, alpha, _ float64) float64 {
			if x <= 0 {
				return dy * (alpha * math.Exp(x))
			}
			return dy
		}, vector: simd.ELU, vectorSlope: simd.ELUGrad},
	{Name: "softplus", Doc: "returns log(1 + exp(beta*x)) / beta, or x where beta*x is above the threshold (torch.nn.functional.softplus).",
		Params: []string{"beta", "threshold"},
		Value: func(x, beta, threshold float64) float64 {
			if x*beta > threshold {
				return x
			}
			return softplus(x*beta) / beta
		},
		Slope: func(dy, x, beta, threshold float64) float64 {
			if x*beta > threshold {
				return dy
			}
			return dy * sigmoid(x*beta)
		}, vector: simd.Softplus, vectorSlope: simd.SoftplusGrad},
	{Name: "leaky relu", Go: "LeakyReLU", Doc: "returns x where it is positive, and slope * x elsewhere (torch.nn.functional.leaky_relu).", Params: []string{"slope"},
		GradDoc: "dy where x is positive, and slope * dy elsewhere. If the slope is not negative, the result can be used instead of x",
		Value: func(x, slope, _ float64) float64 {
			if x > 0 {
				return x
			}
			return x * slope
		},
		Slope: func(dy, x, slope, _ float64) float64 {
			if x > 0 {
				return dy
			}
			return dy * slope
		}, vector: simd.LeakyReLU, vectorSlope: simd.LeakyReLUGrad},
	{Name: "hardtanh", Doc: "returns x limited to the range from low to high (torch.nn.functional.hardtanh); low must not be above high. It is [Elementwise.Clamp] with another gradient.",
		Params: []string{"low", "high"}, Ordered: true, GradDoc: "dy between the bounds, and 0 at them", Value: clamp,
		Slope: func(dy, y, low, high float64) float64 {
			if y <= low || y >= high {
				return 0
			}
			return dy
		}, OfResult: true, vector: simd.Clamp, vectorSlope: simd.HardtanhGrad},
	{Name: "logsigmoid", Go: "LogSigmoid", Doc: "returns the logarithm of the sigmoid of x (torch.nn.functional.logsigmoid).",
		Value: func(x, _, _ float64) float64 { return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x))) },
		Slope: func(dy, x, _, _ float64) float64 { return dy * sigmoid(-x) }, vector: simd.LogSigmoid, vectorSlope: simd.LogSigmoidGrad},
	{Name: "clamp", Doc: "returns x limited to the range from low to high (torch.clamp). An infinite bound has no effect. If low is above high, the result is high. NaN stays NaN.",
		Params: []string{"low", "high"}, GradDoc: "dy between the bounds and at them, and 0 elsewhere", Value: clamp,
		Slope: func(dy, x, low, high float64) float64 {
			if x >= low && x <= high {
				return dy
			}
			return 0
		}, vector: simd.Clamp, vectorSlope: simd.ClampGrad},
	{Name: "celu", Go: "CELU", Doc: "returns max(0, x) + min(0, alpha * (exp(x/alpha) - 1)) (torch.nn.functional.celu).", Params: []string{"alpha"},
		Value: func(x, alpha, _ float64) float64 {
			if x <= 0 {
				return alpha * math.Expm1(x/alpha)
			}
			return x
		},
		Slope: func(dy, x, alpha, _ float64) float64 {
			if x <= 0 {
				return dy * math.Exp(x/alpha)
			}
			return dy
		}},
	{Name: "sign", Doc: "returns -1 where x is negative, 1 where it is positive, and 0 elsewhere (torch.sign); the sign of NaN is 0.", GradDoc: "0", Slope: level, OfResult: true,
		Value: func(x, _, _ float64) float64 {
			switch {
			case x > 0:
				return 1
			case x < 0:
				return -1
			}
			return 0
		}, cheap: true},
	{Name: "floor", Doc: "returns the greatest whole number that is not above x (torch.floor).", GradDoc: "0", Slope: level, OfResult: true,
		Value: func(x, _, _ float64) float64 { return math.Floor(x) }, cheap: true},
	{Name: "ceil", Doc: "returns the least whole number that is not below x (torch.ceil).", GradDoc: "0", Slope: level, OfResult: true,
		Value: func(x, _, _ float64) float64 { return math.Ceil(x) }, cheap: true},
	{Name: "round", Doc: "returns the whole number nearest to x, and of two the even one (torch.round).", GradDoc: "0", Slope: level, OfResult: true,
		Value: func(x, _, _ float64) float64 { return math.RoundToEven(x) }, cheap: true},
	{Name: "log1p", Doc: "returns the logarithm of 1 + x, with full precision for small x (torch.log1p).",
		Value: func(x, _, _ float64) float64 { return math.Log1p(x) }, Slope: func(dy, x, _, _ float64) float64 { return dy / (1 + x) }},
	{Name: "expm1", Doc: "returns e to the power of x, minus 1, with full precision for small x (torch.expm1).", GradDoc: "dy * (y + 1)", OfResult: true,
		Value: func(x, _, _ float64) float64 { return math.Expm1(x) }, Slope: func(dy, y, _, _ float64) float64 { return dy * (y + 1) }},
}

// level is the slope of a step function.
func level(_, _, _, _ float64) float64 { return 0 }

// Slopes are the functions with a Slope, in the order of the codes of their gradients.
var Slopes = func() (all []*Function) {
	for i := range Functions {
		if Functions[i].Slope != nil {
			all = append(all, &Functions[i])
		}
	}
	return all
}()

const (
	tanhScale = math.Sqrt2 / math.SqrtPi // of GELU's approximation
	tanhCubic = 0.044715
)

// normal is the distribution function of the standard normal distribution, without cancellation for
// negative numbers.
func normal(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

// sigmoid never overflows: exp gets an argument that is not positive.
func sigmoid(v float64) float64 {
	if v >= 0 {
		return 1 / (1 + math.Exp(-v))
	}
	e := math.Exp(v)
	return e / (1 + e)
}

func clamp(x, low, high float64) float64 {
	if x < low {
		x = low
	}
	if x > high {
		x = high
	}
	return x
}
