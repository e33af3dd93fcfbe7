package kernel

import (
	"math"
	"math/bits"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Unary is an elementwise function of one argument.
type Unary uint8

// The elementwise functions of one argument. Those with a parameter take it from the argument c.
const (
	Neg Unary = iota
	Exp
	Log
	Tanh
	Sigmoid
	ReLU
	Sqrt
	Square
	AddConst // x + c
	MulConst // x * c
	PowConst // x ** c
)

// Name is the function's name in launches and errors.
func (u Unary) Name() string {
	return [...]string{"neg", "exp", "log", "tanh", "sigmoid", "relu", "sqrt", "square", "add scalar", "mul scalar", "pow scalar"}[u]
}

// vectorUnary are those that package simd has.
var vectorUnary = [...]simd.Unary{Neg: simd.Neg, Exp: simd.Exp, Log: simd.Log, Tanh: simd.Tanh, Sigmoid: simd.Sigmoid, ReLU: simd.ReLU, Sqrt: simd.Sqrt,
	Square: simd.Square, AddConst: simd.AddConst, MulConst: simd.MulConst, PowConst: simd.NoUnary}

// Map sets dst[i] = u(x[i]).
func Map[T Float](u Unary, dst, x []T, c float64) {
	if f := simd.UnaryOf[T](vectorUnary[u]); f != nil {
		grain := grainVector
		if u >= Exp && u <= Sigmoid {
			grain = grainVectorMath
		}
		mapVector(f, grain, dst, x, T(c), 0)
		return
	}
	f, grain := unaryLoop[T](u, T(c))
	split(len(dst), grain, func(lo, hi int) { f(dst[lo:hi], x[lo:hi]) })
}

func unaryLoop[T Float](u Unary, c T) (loop func(dst, x []T), grain int) {
	switch u {
	case Neg:
		return func(dst, x []T) {
			for i, v := range x {
				dst[i] = -v
			}
		}, grainCheap
	case ReLU:
		return relu[T], grainCheap
	case Square:
		return func(dst, x []T) {
			for i, v := range x {
				dst[i] = v * v
			}
		}, grainCheap
	case Sqrt:
		return func(dst, x []T) {
			for i, v := range x {
				dst[i] = sqrt(v)
			}
		}, grainCheap
	case AddConst:
		return func(dst, x []T) {
			for i, v := range x {
				dst[i] = v + c
			}
		}, grainCheap
	case MulConst:
		return func(dst, x []T) {
			for i, v := range x {
				dst[i] = v * c
			}
		}, grainCheap
	case PowConst:
		return mathLoop[T](func(v float64) float64 { return pow(v, float64(c)) }), grainMath
	case Exp:
		return mathLoop[T](exp), grainMath
	case Log:
		return mathLoop[T](log), grainMath
	case Tanh:
		return mathLoop[T](math.Tanh), grainMath
	default:
		return mathLoop[T](sigmoid), grainMath
	}
}

func mathLoop[T Float](f func(float64) float64) func(dst, x []T) {
	return func(dst, x []T) {
		for i, v := range x {
			dst[i] = T(f(float64(v)))
		}
	}
}

// relu keeps NaN, as PyTorch's does.
func relu[T Float](dst, x []T) {
	dst = dst[:len(x)]
	for i, v := range x {
		if v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

// sigmoid never overflows: exp gets an argument that is not positive.
func sigmoid(v float64) float64 {
	if v >= 0 {
		return 1 / (1 + math.Exp(-v))
	}
	e := math.Exp(v)
	return e / (1 + e)
}

// sqrt compiles to one instruction for either type.
func sqrt[T Float](v T) T { return T(math.Sqrt(float64(v))) }

// Convert sets dst[i] = x[i] as another type.
func Convert[D Float, S float32 | float64 | int32 | int64 | uint8](dst []D, x []S) {
	split(len(dst), grainCheap, func(lo, hi int) {
		out, in := any(dst[lo:hi]), any(x[lo:hi])
		if out, ok := out.([]float32); ok && bits.UintSize == 32 {
			if in, ok := in.([]int64); ok {
				for i, v := range in {
					out[i] = nearest(v)
				}
				return
			}
		}
		for i, v := range x[lo:hi] {
			dst[lo+i] = D(v)
		}
	})
}

// nearest is the nearest float32, which Go's own conversion misses on 386. What float64 does not hold is rounded to an odd number
// first, so that it is not rounded twice.
func nearest(v int64) float32 {
	if w := v &^ (1<<11 - 1); w != v && (v > 1<<53 || v < -1<<53) {
		v = w | 1<<11
	}
	return float32(float64(v))
}
