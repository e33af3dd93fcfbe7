package main

import (
	"math"
	"math/big"
)

// precision is the precision, in bits, with which coefficients are computed.
const precision = 400

func exact(v float64) *big.Float { return new(big.Float).SetPrec(precision).SetFloat64(v) }

func ratio(a, b int64) *big.Float {
	return new(big.Float).SetPrec(precision).Quo(exact(float64(a)), exact(float64(b)))
}

func sum(a, b *big.Float) *big.Float     { return new(big.Float).SetPrec(precision).Add(a, b) }
func product(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(precision).Mul(a, b) }
func quotient(a, b *big.Float) *big.Float {
	return new(big.Float).SetPrec(precision).Quo(a, b)
}

// series returns the sum of the terms until they are negligible. term gets the previous term.
func series(first *big.Float, term func(k int64, before *big.Float) *big.Float) *big.Float {
	total, t := exact(0), first
	for k := int64(1); t.Sign() != 0 && t.MantExp(nil) > total.MantExp(nil)-precision; k++ {
		total = sum(total, t)
		t = term(k, t)
	}
	return total
}

// fit returns the polynomial of the degree that equals f at the Chebyshev points of [lo, hi], the
// constant coefficient first. Its error is within a small factor of the minimum.
func fit(f func(x *big.Float) *big.Float, lo, hi float64, degree int) []float64 {
	n := degree + 1
	x, c := make([]*big.Float, n), make([]*big.Float, n)
	for i := range n {
		x[i] = exact((lo+hi)/2 + (hi-lo)/2*math.Cos(math.Pi*(float64(i)+0.5)/float64(n)))
		c[i] = f(x[i])
	}
	for k := 1; k < n; k++ { // Newton's divided differences
		for i := n - 1; i >= k; i-- {
			c[i] = quotient(sum(c[i], new(big.Float).Neg(c[i-1])), sum(x[i], new(big.Float).Neg(x[i-k])))
		}
	}
	p := make([]*big.Float, n)
	for i := range p {
		p[i] = exact(0)
	}
	for k := n - 1; k >= 0; k-- { // p = p*(x - x[k]) + c[k]
		for i := n - 1; i > 0; i-- {
			p[i] = sum(p[i-1], new(big.Float).Neg(product(p[i], x[k])))
		}
		p[0] = sum(c[k], new(big.Float).Neg(product(p[0], x[k])))
	}
	out := make([]float64, n)
	for i, v := range p {
		out[i], _ = v.Float64()
	}
	return out
}
