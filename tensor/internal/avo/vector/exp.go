package main

import (
	"math"
	"math/big"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// Functions of the exponential are computed in float64. With x = n·ln 2 + r and |r| ≤ ln 2 / 2, e^x
// is 2^n·e^r, and a polynomial approximates e^r. For float32 its error is 2^-34, so that the result
// is rounded nearly as if it were exact; for float64 it has all digits. Only the exponential of
// float32 itself is computed in float32, because it is the most time-critical one and twice as fast
// as in float64.

// expSeries is a sum of powers of r over factorials, of the terms from first on, each divided by
// r^first.
func expSeries(first int64) func(r *big.Float) *big.Float {
	return func(r *big.Float) *big.Float {
		t := exact(1)
		for k := int64(2); k <= first; k++ {
			t = product(t, ratio(1, k))
		}
		return series(t, func(k int64, before *big.Float) *big.Float { return product(product(before, r), ratio(1, first+k)) })
	}
}

const halfLn2 = math.Ln2/2 + 1e-6

var (
	expShort   = fit(expSeries(0), -halfLn2, halfLn2, 7)
	expm1Short = fit(expSeries(1), -halfLn2, halfLn2, 7)
	expm1Long  = fit(expSeries(2), -halfLn2, halfLn2, 10)
	expSingle  = append([]float64{1, 1}, fit(expSeries(2), -halfLn2, halfLn2, 4)...)
)

// The logarithm of 2 in two parts. The first ends with zeros, so that its product with a whole
// number of 11 bits is exact.
const (
	ln2High = 0x1.62e42fefa38p-1
	ln2Low  = 0x1.ef35793c7673p-45
	shifter = 0x1.8p52 // adding it leaves a number's nearest whole number in the last bits

	ln2HighSingle = 0x1.62e43p-1 // of float32; x - n ln2HighSingle is exact where n is the nearest
	ln2LowSingle  = -0x1.05c610ca86c39p-29
	shifterSingle = 0x1.8p23
)

// long reports whether all digits of float64 are needed.
func (u unit) long() bool { return u.elem == 8 || u.precise }

// whole is n, the nearest whole number to x/ln 2, as a number, and as shifter + n.
func (u unit) whole(x vector) (n, shifted vector) {
	shifted = u.all(num(1 / math.Ln2))
	shifted = u.fma(shifted, x, num(shifter))
	return u.sub(shifted, num(shifter)), shifted
}

// rest is r = x - n ln 2 and, if all digits are needed, its rounding error.
func (u unit) rest(x, n vector) (r vector) {
	if !u.long() {
		r = u.all(x)
		u.deduct(r, n, num(math.Ln2))
		return r
	}
	r = u.all(x)
	u.deduct(r, n, num(ln2High))
	u.deduct(r, n, num(ln2Low))
	return r
}

// power is 2^n, with n in the last bits of shifted. n must be in the range of exponents.
func (u unit) power(shifted vector) vector {
	p := u.new()
	u.emit(addWhole, bits(1023), shifted, p)
	return u.shiftLeft(p, 52)
}

// within is x limited to between lo and hi. NaN stays NaN.
func (u unit) within(x vector, lo, hi float64) vector {
	return u.min(u.all(num(hi)), u.max(u.all(num(lo)), x))
}

// exp is e^x, for float32 as a number that fits into float64, without overflow and underflow.
func (u unit) exp(x vector) vector {
	if u.long() {
		return u.expWithin(u.within(x, -746, 710))
	}
	return u.expWithin(u.within(x, -700, 89))
}

// expMinus is e^x for x ≤ 0.
func (u unit) expMinus(x vector) vector {
	if u.long() {
		return u.expWithin(u.max(u.all(num(-746)), x))
	}
	return u.expWithin(u.max(u.all(num(-700)), x))
}

// eighths is the table of 2^(j/8), minus j in the bits above the fraction's, to which 8n + j is
// shifted.
func eighths() operand.Mem {
	m := build.GLOBL("eighths", attr.RODATA|attr.NOPTR)
	for j := range 8 {
		v := math.Float64bits(math.Exp2(float64(j) / 8))
		build.DATA(8*j, operand.U64(v-uint64(j)<<49))
	}
	return m
}

var (
	eighthTable operand.Mem
	expEighth   = fit(expSeries(0), -halfLn2/8, halfLn2/8, 4)
)

// expEighths is e^x for float32 with AVX-512, where a register holds 2^(j/8) for all j. With x =
// (8n + j)/8 ln 2 + r the polynomial is short.
func (u unit) expEighths(x vector) vector {
	shifted := u.all(num(8 / math.Ln2))
	shifted = u.fma(shifted, x, num(shifter))
	n := u.sub(shifted, num(shifter))
	u.deduct(x, n, num(math.Ln2/8))
	p := u.horner(x, expEighth)
	if eighthTable.Symbol.Name == "" {
		eighthTable = eighths()
	}
	s := u.new()
	build.VPERMPD(eighthTable, shifted, s)
	u.emit(addWhole, u.shiftLeft(shifted, 49), s, s)
	return u.mul(p, s)
}

func (u unit) expWithin(x vector) vector {
	if u.wide && !u.long() {
		return u.expEighths(x)
	}
	n, shifted := u.whole(x)
	if !u.long() {
		p := u.horner(u.rest(x, n), expShort)
		exponent := u.shiftLeft(shifted, 52)
		d := u.new()
		u.emit(addWhole, exponent, p, d)
		return d
	}
	p := u.expm1Rest(u.rest(x, n))
	p = u.add(p, num(1))
	if u.wide {
		d := u.new()
		build.VSCALEFPD(n, p, d)
		return d
	}
	// In two steps, the first of which is exact, because 2^n may not fit into float64.
	half := u.all(num(0.5))
	half = u.fma(half, n, num(shifter))
	rest := u.sub(n, u.sub(half, num(shifter)))
	return u.mul(u.mul(p, u.power(half)), u.power(u.add(rest, num(shifter))))
}

// single is e^x for float32, computed in float32. Only the last sum of the polynomial and the
// product with 2^n round the result.
func (u unit) single(x vector) vector {
	x = u.within(x, -104, 89)
	shifted := u.all(num(1 / math.Ln2))
	shifted = u.fma(shifted, x, num(shifterSingle))
	n := u.sub(shifted, num(shifterSingle))
	u.deduct(x, n, num(ln2HighSingle))
	u.deduct(x, n, num(ln2LowSingle))
	p := u.horner(x, expSingle)
	if u.wide {
		d := u.new()
		build.VSCALEFPS(n, p, d)
		return d
	}
	// In two steps, the first of which is exact, as in expWithin.
	power := func(shifted vector) vector {
		p := u.new()
		u.emit(addWhole, bits(127), shifted, p)
		return u.shiftLeft(p, 23)
	}
	half := u.all(num(0.5))
	half = u.fma(half, n, num(shifterSingle))
	rest := u.sub(n, u.sub(half, num(shifterSingle)))
	return u.mul(u.mul(p, power(half)), power(u.add(rest, num(shifterSingle))))
}

// expm1Rest is e^r - 1.
func (u unit) expm1Rest(r vector) vector {
	if !u.long() {
		return u.mul(u.horner(r, expm1Short), r)
	}
	q := u.horner(r, expm1Long)
	return u.fma(q, u.mul(r, r), r)
}

// expm1 is e^x - 1 for x ≤ 0.
func (u unit) expm1(x vector) vector {
	x = u.max(u.all(num(-60)), x)
	n, shifted := u.whole(x)
	p := u.expm1Rest(u.rest(x, n))
	s := u.power(shifted)
	return u.fma(p, s, u.sub(s, num(1)))
}

// minusAbs is -|x|.
func (u unit) minusAbs(x vector) vector { return u.or(x, u.signBit()) }

// tanh is -m/(m + 2) with m = e^(-2|x|) - 1, and the sign of x.
func (u unit) tanh(x vector) vector {
	y := u.minusAbs(x)
	m := u.expm1(u.add(y, y))
	return u.withSign(u.abs(u.div(m, u.add(m, num(2)))), x)
}

// sigmoid is 1/(1 + e^-|x|), or e^-|x| times that for a negative x.
func (u unit) sigmoid(x vector) vector {
	e := u.expMinus(u.minusAbs(x))
	numerator := u.choose(u.cmp(lessThan, x, num(0)), e, u.all(num(1)))
	return u.div(numerator, u.add(e, num(1)))
}

func exponentials() {
	for _, f := range []struct {
		name, doc string
		of        func(u unit, x vector) vector
	}{
		{"exp", "sets dst to e to the power of x", unit.exp},
		{"tanh", "sets dst to the hyperbolic tangent of x", unit.tanh},
		{"sigmoid", "sets dst to 1/(1 + exp(-x))", unit.sigmoid},
		{"silu", "sets dst to x/(1 + exp(-x))", func(u unit, x vector) vector {
			// At -Inf the product would be NaN, because the sigmoid is 0.
			return u.mul(u.only(u.cmp(atLeast, x, num(-745)), u.sigmoid(x)), x)
		}},
	} {
		eachUnit(true, func(u unit) {
			of := f.of
			if f.name == "exp" && u.elem == 4 {
				u.calc, of = 4, unit.single
			}
			u.unary(f.name, f.doc, 2, func(x, _, _ vector) vector { return of(u, x) })
		})
	}
}
