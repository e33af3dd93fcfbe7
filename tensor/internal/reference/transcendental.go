package reference

import (
	"math"
	"math/big"
)

// The transcendental functions are computed with 160 bits, because package math has errors of its
// own, which differ between processors.
const bits = 160

func number(v float64) *big.Float { return new(big.Float).SetPrec(bits).SetFloat64(v) }

func zero() *big.Float { return new(big.Float).SetPrec(bits) }

var ln2, _ = zero().SetString("0.693147180559945309417232121458176568075500134360255254120680009493393621969694715605863326996418687")

// bigExp returns e to the power of t, for a result in or near the range of float64. With t = k·ln 2
// + r it is the Taylor series of r/2^8, squared eight times.
func bigExp(t *big.Float) *big.Float {
	quotient, _ := zero().Quo(t, ln2).Float64()
	k := math.Round(quotient)
	r := zero().Sub(t, zero().Mul(number(k), ln2))
	r.SetMantExp(r, -8)
	sum, term := number(1), number(1)
	for i := 1.0; i <= 16; i++ {
		term.Quo(term.Mul(term, r), number(i))
		sum.Add(sum, term)
	}
	for range 8 {
		sum.Mul(sum, sum)
	}
	return sum.SetMantExp(sum, int(k))
}

// bigLog returns the logarithm of a positive finite number: an estimate, improved by one
// third-order Newton step.
func bigLog(x float64) *big.Float {
	guess := number(math.Log2(x) * math.Ln2)
	d := zero().Sub(zero().Mul(number(x), bigExp(zero().Neg(guess))), number(1))
	square := zero().Mul(d, d)
	return guess.Add(guess, d.Sub(d, square.SetMantExp(square, -1)))
}

func rounded(x *big.Float) float64 {
	v, _ := x.Float64()
	return v
}

// Exp is e to the power of x.
func Exp(x float64) float64 {
	if !(math.Abs(x) < 800) {
		return math.Exp(x)
	}
	return rounded(bigExp(number(x)))
}

// Log is the natural logarithm.
func Log(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return math.Log(x)
	}
	return rounded(bigLog(x))
}

// Pow is x to the power of y.
func Pow(x, y float64) float64 {
	if x == 0 || y == 0 || !finite(x) || !finite(y) || x < 0 && y != math.Trunc(y) {
		return math.Pow(x, y)
	}
	t := zero().Mul(number(y), bigLog(math.Abs(x)))
	if near, _ := t.Float64(); math.Abs(near) > 800 {
		return math.Pow(x, y) // 0 or infinite
	}
	return rounded(bigExp(t)) * math.Pow(math.Copysign(1, x), y)
}

// Tanh is the hyperbolic tangent.
func Tanh(x float64) float64 {
	switch {
	case math.Abs(x) < 1e-12:
		return x - x*x*x/3
	case !(math.Abs(x) < 100):
		return math.Tanh(x)
	}
	e := bigExp(number(2 * x))
	return rounded(zero().Quo(zero().Sub(e, number(1)), zero().Add(e, number(1))))
}

// Sigmoid is 1/(1+exp(-x)).
func Sigmoid(x float64) float64 {
	switch {
	case x > 100:
		return 1
	case !(math.Abs(x) < 800):
		return Exp(x) // 0 or NaN
	}
	return rounded(zero().Quo(number(1), zero().Add(number(1), bigExp(number(-x)))))
}

func finite(v float64) bool { return !math.IsInf(v, 0) && v == v }
