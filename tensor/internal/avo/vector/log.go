package main

import (
	"math"
	"math/big"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// Logarithms are computed in float64. With x = m·2^e, m between √½ and √2, and s = (m - 1)/(m + 1),
// the logarithm of m is 2(s + s³/3 + s⁵/5 + …). Its large part is f = m - 1 itself, minus f²/2.

// artanhRest is 2/3 z + 2/5 z² + … over z, of z = s².
func artanhRest(z *big.Float) *big.Float {
	power := exact(1)
	return series(ratio(2, 3), func(k int64, _ *big.Float) *big.Float {
		power = product(power, z)
		return product(power, ratio(2, 2*k+3))
	})
}

var (
	artanhShort = fit(artanhRest, 0, 0.0296, 4)
	artanhLong  = fit(artanhRest, 0, 0.0296, 7)
	log1pShort  = fit(artanhRest, 0, 0.1112, 7)
	log1pLong   = fit(artanhRest, 0, 0.1112, 11)
)

// log is the natural logarithm.
func (u unit) log(x vector) vector {
	m, e := u.split(x)
	f := u.sub(m, num(1))
	s := u.div(f, u.add(f, num(2)))
	z := u.mul(s, s)
	half := u.mul(u.mul(f, num(0.5)), f)
	p := artanhShort
	if u.long() {
		p = artanhLong
	}
	rest := u.mul(u.horner(z, p), z)
	rest = u.mul(u.add(rest, half), s) // s(f²/2 + 2z/3 + …)
	u.accumulate(rest, e, num(ln2Low)) // and the rest of the logarithm of 2^e
	y := u.sub(f, u.sub(half, rest))   // f - (f²/2 - …)
	u.accumulate(y, e, num(ln2High))   // exact except for its own rounding
	y = u.choose(u.cmp(equal, x, num(math.Inf(1))), x, y)
	y = u.choose(u.cmp(equal, x, num(0)), num(math.Inf(-1)), y)
	return u.choose(u.cmp(notAtLeast, x, num(0)), num(math.NaN()), y)
}

// split returns m and e as numbers, with x = m·2^e and m between √½ and √2, for x that are positive
// and finite.
func (u unit) split(x vector) (m, e vector) {
	if u.elem == 8 { // subnormal numbers; as float64, those of float32 are normal
		small := u.cmp(lessThan, x, num(0x1p-1022))
		x = u.choose(small, u.mul(x, num(0x1p54)), x)
		e = u.choose(small, num(-54), u.zero())
	} else {
		e = u.zero()
	}
	// The bits of x minus those of √½ have floor(log2(x/√½)) above the fraction's bits.
	above := u.new()
	u.emit(subWhole, bits(math.Float64bits(math.Sqrt2/2)), x, above)
	whole := u.new()
	build.VPSRLQ(operand.U8(52), above, whole)
	m = u.new()
	u.emit(subWhole, u.shiftLeft(whole, 52), x, m)
	// These are 12 bits, and the first is the sign. With the sign flipped they are 2048 + e.
	number := u.new()
	u.emit(addWhole, bits(math.Float64bits(shifter)), u.xor(whole, bits(2048)), number)
	return m, u.add(u.sub(number, num(shifter+2048)), e)
}

// log1p is the logarithm of 1 + x for x between 0 and 1, for which the series suffices.
func (u unit) log1p(x vector) vector {
	s := u.div(x, u.add(x, num(2)))
	z := u.mul(s, s)
	p := log1pShort
	if u.long() {
		p = log1pLong
	}
	y := u.mul(u.horner(z, p), z)
	return u.fma(y, s, u.add(s, s))
}
