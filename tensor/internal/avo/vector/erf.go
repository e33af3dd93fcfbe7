package main

import (
	"math"
	"math/big"
)

// The complement of the error function is e^(-x²)·w(x) for x ≥ 0, where (1 + 2x)w(x) is a smooth
// function of t = (x - a)/(x + a). So a polynomial approximates it, also for large x. Near 0 the
// error function itself is x times a polynomial of x².

// erfcMiddle is a. With this value the polynomial has about the fewest terms.
const erfcMiddle = 3.75

var rootPi = new(big.Float).SetPrec(precision).Sqrt(bigPi())

// bigPi uses Machin's formula.
func bigPi() *big.Float {
	arctan := func(n int64) *big.Float {
		power := ratio(1, n)
		square := ratio(1, n*n)
		sign := exact(1)
		return series(power, func(k int64, _ *big.Float) *big.Float {
			power = product(power, square)
			sign.Neg(sign)
			return product(product(power, ratio(1, 2*k+1)), sign)
		})
	}
	return sum(product(exact(16), arctan(5)), product(exact(-4), arctan(239)))
}

// bigErfOverX is erf(x)/x of z = x²: 2/√π e^-z Σ (2z)^k/(2k+1)!!
func bigErfOverX(z *big.Float) *big.Float {
	two := product(exact(2), z)
	t := series(exact(1), func(k int64, before *big.Float) *big.Float { return product(product(before, two), ratio(1, 2*k+1)) })
	return quotient(product(exact(2), quotient(t, rootPi)), bigExp(z))
}

// bigExp is e^x for x ≥ 0, by halving.
func bigExp(x *big.Float) *big.Float {
	r := new(big.Float).SetPrec(precision).SetMantExp(x, -12)
	t := series(exact(1), func(k int64, before *big.Float) *big.Float { return product(product(before, r), ratio(1, k)) })
	for range 12 {
		t = product(t, t)
	}
	return t
}

// bigErfcx is e^(x²) erfc(x).
func bigErfcx(x *big.Float) *big.Float {
	if x.Cmp(exact(7)) < 0 {
		z := product(x, x)
		erf := product(x, bigErfOverX(z))
		return product(bigExp(z), sum(exact(1), new(big.Float).Neg(erf)))
	}
	// Laplace's continued fraction.
	d := x
	for k := int64(300); k > 0; k-- {
		d = sum(x, quotient(ratio(k, 2), d))
	}
	return quotient(exact(1), product(rootPi, d))
}

// scaledErfc is (1 + 2x)w(x) of t.
func scaledErfc(t *big.Float) *big.Float {
	x := product(exact(erfcMiddle), quotient(sum(exact(1), t), sum(exact(1), new(big.Float).Neg(t))))
	return product(sum(exact(1), product(exact(2), x)), bigErfcx(x))
}

var (
	erfcShort = fit(scaledErfc, -1, 0.8, 13)
	erfcLong  = fit(scaledErfc, -1, 0.8, 21)
	erfShort  = fit(bigErfOverX, 0, 1, 8)
	erfLong   = fit(bigErfOverX, 0, 1, 12)
)

// erfcx is w(x), for x ≥ 0. Where e^(-x²) is 0, it is any finite number.
func (u unit) erfcx(x vector) vector {
	x = u.min(u.all(num(30)), x)
	one := u.add(x, num(erfcMiddle))
	two := u.add(u.add(x, x), num(1))
	// One division for both: t = (x - a)·two/(one·two), and 1/two = one/(one·two).
	inverse := u.div(u.all(num(1)), u.mul(one, two))
	t := u.mul(u.mul(u.sub(x, num(erfcMiddle)), two), inverse)
	p := erfcShort
	if u.long() {
		p = erfcLong
	}
	return u.mul(u.horner(t, p), u.mul(one, inverse))
}

// erf is the error function.
func (u unit) erf(x vector) vector {
	y, z := u.abs(x), u.mul(x, x)
	far := u.expMinus(u.neg(z))
	far = u.fnma(far, u.erfcx(y), num(1))
	p := erfShort
	if u.long() {
		p = erfLong
	}
	near := u.mul(u.horner(u.min(u.all(num(1)), z), p), y)
	return u.withSign(u.choose(u.cmp(lessThan, y, num(1)), near, far), x)
}

// gaussian is e^(-x²/2) or, unless halved, e^(-x²), corrected for the rounding of x².
func (u unit) gaussian(x vector, halved bool) vector {
	scale := -1.0
	if halved {
		scale = -0.5
	}
	h := u.mul(x, x)
	e := u.expMinus(u.mul(h, num(scale)))
	if !u.long() { // e is not 0 for infinities
		return u.only(u.cmp(notAtLeast, h, num(1500)), e)
	}
	low := u.all(x)
	u.emit(fmsub213, h, x, low) // x·x - h
	low = u.choose(u.cmp(lessThan, h, num(1e6)), low, u.zero())
	return u.fma(u.mul(low, num(scale)), e, e)
}

// normal is the distribution function of the standard normal distribution, and e^(-x²/2).
func (u unit) normal(x vector) (phi, e vector) {
	e = u.gaussian(x, true)
	half := u.mul(u.mul(u.erfcx(u.mul(u.abs(x), num(math.Sqrt2/2))), e), num(0.5))
	return u.choose(u.cmp(lessThan, x, num(0)), half, u.sub(u.all(num(1)), half)), e
}
