package simd

// Float is the constraint of the element types.
type Float interface{ float32 | float64 }

// Unary is an elementwise function of one argument.
type Unary uint8

// The elementwise functions of one argument; some take parameters c and d. The numbers are error
// bounds in units in the last place (ulp) of the result, for float32 and float64. The float32
// functions are computed in float64, except Exp. The functions of NaN are NaN.
const (
	NoUnary Unary = iota // none: UnaryOf returns nil
	Neg
	Abs
	Sqrt
	Square
	ReLU       // -0 stays -0
	AddConst   // x + c
	MulConst   // x * c
	LeakyReLU  // c x unless x is positive
	Clamp      // between c and d
	Exp        // within 1 ulp, also for float64
	Tanh       // 0.501, 2
	Sigmoid    // 0.502, 2
	SiLU       // 0.502, 3; less accurate where the sigmoid is subnormal
	Log        // 0.501, 2
	Erf        // 0.501, 2
	Rsqrt      // 0.501, 2
	GELU       // 0.501, 2 of x
	GELUTanh   // 0.501, 4 of x
	ELU        // c (exp(x) - 1) up to 0; 0.501, 3
	Softplus   // log(1 + exp(c x))/c up to c x = d; 0.501, 4
	LogSigmoid // 0.502, 3
	unaries
)

// Binary is an elementwise function of two arguments.
type Binary uint8

// The elementwise functions of two arguments. They round like plain Go.
const (
	NoBinary Binary = iota // none: BinaryOf returns nil
	Add
	Sub
	Mul
	Div
	ReLUGrad    // a if b > 0 or NaN, else 0
	TanhGrad    // a * ((1 - b)(1 + b))
	SigmoidGrad // a * b * (1 - b)
	SqrtGrad    // a / (2b)
	SquareGrad  // a * 2b
	Maximum     // NaN if either is NaN
	Minimum
	AddReLU // a + b, or 0 if that is negative
	binaries
)

// Gradient is the gradient of an elementwise function's argument: dy times the derivative at v. v
// is the function's argument or, if the comment says so, its result.
type Gradient uint8

// The gradients.
const (
	NoGradient Gradient = iota // none: GradientOf returns nil
	AbsGrad
	ErfGrad
	RsqrtGrad // of the result
	GELUGrad
	GELUTanhGrad
	SiLUGrad
	ELUGrad
	SoftplusGrad
	LeakyReLUGrad // of the result
	HardtanhGrad  // of the result
	LogSigmoidGrad
	ClampGrad
	gradients
)

// GradientFunc sets n elements of dst, which may be dy or v.
type GradientFunc[T Float] = func(dst, dy, v *T, n int, c, d T)

// UnaryFunc sets n elements of dst, which may be x. Some functions use c and d.
type UnaryFunc[T Float] = func(dst, x *T, n int, c, d T)

// BinaryFunc sets n elements of dst, which may be a or b. sa and sb are strides: 1, or 0 for a
// single number instead of many.
type BinaryFunc[T Float] = func(dst, a, b *T, n int, sa, sb int)

// UnaryOf returns the function at the active level, or nil if the caller has to use plain Go. n
// must not be 0, and should be small, because the scheduler can't preempt the function.
func UnaryOf[T Float](f Unary) UnaryFunc[T] {
	l := Active()
	if g, ok := any(unary32[l][f]).(UnaryFunc[T]); ok {
		return g
	}
	return any(unary64[l][f]).(UnaryFunc[T])
}

// BinaryOf returns the function at the active level, or nil.
func BinaryOf[T Float](f Binary) BinaryFunc[T] {
	l := Active()
	if g, ok := any(binary32[l][f]).(BinaryFunc[T]); ok {
		return g
	}
	return any(binary64[l][f]).(BinaryFunc[T])
}

// GradientOf returns the function at the active level, or nil.
func GradientOf[T Float](f Gradient) GradientFunc[T] {
	l := Active()
	if g, ok := any(gradient32[l][f]).(GradientFunc[T]); ok {
		return g
	}
	return any(gradient64[l][f]).(GradientFunc[T])
}
