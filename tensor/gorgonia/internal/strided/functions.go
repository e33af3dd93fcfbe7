package strided

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Float is the constraint of the element types of arithmetic.
type Float interface{ float32 | float64 }

// Type is the type of an array's elements in arithmetic: Float32 or Float64.
type Type = backend.Dtype

// The types.
const (
	Float32 = backend.Float32
	Float64 = backend.Float64
)

// Binary is an elementwise function of two arguments.
type Binary uint8

// The functions of two arguments. From Gt on they are comparisons, which return ones and zeros.
const (
	Add Binary = iota
	Sub
	Mul
	Div
	Pow
	Mod
	Least
	Greatest
	Gt
	Gte
	Lt
	Lte
	Eq
	Ne
)

// Compares reports whether the function is a comparison.
func (b Binary) Compares() bool { return b >= Gt }

func binary[T Float](op Binary) func(a, b T) T {
	switch op {
	case Add:
		return func(a, b T) T { return a + b }
	case Sub:
		return func(a, b T) T { return a - b }
	case Mul:
		return func(a, b T) T { return a * b }
	case Div:
		return func(a, b T) T { return a / b }
	case Pow:
		return func(a, b T) T { return T(math.Pow(float64(a), float64(b))) }
	case Mod:
		return func(a, b T) T { return T(math.Mod(float64(a), float64(b))) }
	case Least:
		return func(a, b T) T {
			if b < a {
				return b
			}
			return a
		}
	case Greatest:
		return func(a, b T) T {
			if b > a {
				return b
			}
			return a
		}
	}
	holds := comparison[T](op)
	return func(a, b T) T {
		if holds(a, b) {
			return 1
		}
		return 0
	}
}

func comparison[T Float](op Binary) func(a, b T) bool {
	switch op {
	case Gt:
		return func(a, b T) bool { return a > b }
	case Gte:
		return func(a, b T) bool { return a >= b }
	case Lt:
		return func(a, b T) bool { return a < b }
	case Lte:
		return func(a, b T) bool { return a <= b }
	case Eq:
		return func(a, b T) bool { return a == b }
	default:
		return func(a, b T) bool { return a != b }
	}
}

// Unary is an elementwise function of one argument.
type Unary uint8

// The functions of one argument. Clamp has two parameters in addition.
const (
	Neg Unary = iota
	Inv
	Square
	Cube
	Exp
	Tanh
	Log
	Log2
	Log10
	Sqrt
	Cbrt
	InvSqrt
	Abs
	Sign
	Clamp
)

func unary[T Float](op Unary, lo, hi T) func(T) T {
	switch op {
	case Neg:
		return func(v T) T { return -v }
	case Inv:
		return func(v T) T { return 1 / v }
	case Square:
		return func(v T) T { return v * v }
	case Cube:
		return func(v T) T { return v * v * v }
	case Sign:
		return func(v T) T { // keeps NaN
			switch {
			case v < 0:
				return -1
			case v > 0:
				return 1
			}
			return v
		}
	case Clamp:
		return func(v T) T {
			switch {
			case v < lo:
				return lo
			case v > hi:
				return hi
			}
			return v
		}
	}
	f := map[Unary]func(float64) float64{Exp: math.Exp, Tanh: math.Tanh, Log: math.Log, Log2: math.Log2, Log10: math.Log10, Sqrt: math.Sqrt,
		Cbrt: math.Cbrt, InvSqrt: func(v float64) float64 { return 1 / math.Sqrt(v) }, Abs: math.Abs}[op]
	return func(v T) T { return T(f(float64(v))) }
}

// before reports whether a fold takes v at index i rather than w at index j. A fold takes NaN
// before all others, then the least or the greatest element, and of equal ones the first.
func before[T Float](least bool, v T, i int, w T, j int) bool {
	nan, other := v != v, w != w
	switch {
	case nan || other:
		return nan && (!other || i < j)
	case v == w:
		return i < j
	case least:
		return v < w
	}
	return v > w
}
