package main

import (
	"fmt"
	"math"
)

const (
	tanhScale = math.Sqrt2 / math.SqrtPi // of GELU's approximation
	tanhCubic = 0.044715
)

// functions writes the functions of layers, and their gradients, in float64.
func functions() {
	type forward = func(u unit, x, c, d vector) vector
	for _, f := range []struct {
		name, doc string
		of        forward
	}{
		{"log", "sets dst to the natural logarithm of x", func(u unit, x, _, _ vector) vector { return u.log(x) }},
		{"erf", "sets dst to the error function of x", func(u unit, x, _, _ vector) vector { return u.erf(x) }},
		{"rsqrt", "sets dst to 1 over the square root of x", func(u unit, x, _, _ vector) vector { return u.div(u.all(num(1)), u.sqrt(x)) }},
		{"gelu", "sets dst to x times the normal distribution function of x", func(u unit, x, _, _ vector) vector {
			phi, _ := u.normal(x)
			return u.mul(phi, x)
		}},
		{"geluTanh", "sets dst to GELU with a hyperbolic tangent", func(u unit, x, _, _ vector) vector {
			s, _ := u.logistic(u.geluInner(x))
			return u.mul(s, x)
		}},
		{"elu", "sets dst to x if that is positive, otherwise to c (exp(x) - 1)", func(u unit, x, c, _ vector) vector {
			return u.choose(u.cmp(atMost, x, num(0)), u.mul(u.expm1(x), c), x)
		}},
		{"softplus", "sets dst to log(1 + exp(c x))/c, or to x where c x > d", func(u unit, x, c, d vector) vector {
			y := u.mul(x, c)
			return u.choose(u.cmp(greaterThan, y, d), x, u.div(u.softplus(y), c))
		}},
		{"logSigmoid", "sets dst to -log(1 + exp(-x))", func(u unit, x, _, _ vector) vector { return u.neg(u.softplus(u.neg(x))) }},
	} {
		eachUnit(true, func(u unit) { u.unary(f.name, f.doc, 1, func(x, c, d vector) vector { return f.of(u, x, c, d) }) })
	}
	type gradient = func(u unit, dy, v, c, d vector) vector
	for _, f := range []struct {
		name   string
		double bool
		of     gradient
	}{
		{"absGrad", false, func(u unit, dy, x, _, _ vector) vector {
			g := u.choose(u.cmp(greaterThan, x, num(0)), dy, u.mul(dy, num(0)))
			return u.choose(u.cmp(lessThan, x, num(0)), u.neg(dy), g)
		}},
		{"leakyReLUGrad", false, func(u unit, dy, y, c, _ vector) vector {
			return u.choose(u.cmp(greaterThan, y, num(0)), dy, u.mul(dy, c))
		}},
		{"hardtanhGrad", false, func(u unit, dy, y, c, d vector) vector {
			return u.only(u.cmp(notAtMost, y, c), u.only(u.cmp(notAtLeast, y, d), dy))
		}},
		{"clampGrad", false, func(u unit, dy, x, c, d vector) vector {
			return u.only(u.cmp(atLeast, x, c), u.only(u.cmp(atMost, x, d), dy))
		}},
		{"erfGrad", true, func(u unit, dy, x, _, _ vector) vector {
			return u.mul(u.mul(u.gaussian(x, false), num(2/math.SqrtPi)), dy)
		}},
		{"rsqrtGrad", true, func(u unit, dy, y, _, _ vector) vector {
			return u.mul(u.mul(u.mul(u.mul(y, num(-0.5)), y), y), dy)
		}},
		{"geluGrad", true, func(u unit, dy, x, _, _ vector) vector {
			phi, e := u.normal(x)
			return u.mul(u.fma(u.mul(e, num(1/(math.Sqrt2*math.SqrtPi))), x, phi), dy)
		}},
		{"geluTanhGrad", true, func(u unit, dy, x, _, _ vector) vector {
			s, bend := u.logistic(u.geluInner(x))
			slope := u.all(num(6 * tanhScale * tanhCubic))
			slope = u.fma(slope, u.mul(x, x), num(2*tanhScale))
			return u.mul(u.fma(u.mul(bend, x), slope, s), dy)
		}},
		{"siluGrad", true, func(u unit, dy, x, _, _ vector) vector {
			s, bend := u.logistic(x)
			return u.mul(u.fma(bend, x, s), dy)
		}},
		{"eluGrad", true, func(u unit, dy, x, c, _ vector) vector {
			return u.choose(u.cmp(atMost, x, num(0)), u.mul(u.mul(u.exp(x), c), dy), dy)
		}},
		{"softplusGrad", true, func(u unit, dy, x, c, d vector) vector {
			y := u.mul(x, c)
			s, _ := u.logistic(y)
			return u.choose(u.cmp(greaterThan, y, d), dy, u.mul(s, dy))
		}},
		{"logSigmoidGrad", true, func(u unit, dy, x, _, _ vector) vector {
			s, _ := u.logistic(u.neg(x))
			return u.mul(s, dy)
		}},
	} {
		eachUnit(f.double, func(u unit) {
			u.precise = true
			u.gradient(f.name, func(dy, v, c, d vector) vector { return f.of(u, dy, v, c, d) })
		})
	}
}

// gradient writes a function that computes dy times a derivative.
func (u unit) gradient(name string, of func(dy, v, c, d vector) vector) {
	u.function(name, fmt.Sprintf("func(dst, dy, v *%s, n int, c, d %[1]s)", u.float()), "sets dst to the gradient of the argument.")
	dst, dy, v := argument("dst", u.elem), argument("dy", u.elem), argument("v", u.elem)
	n, c, d := count(), u.scalar("c"), u.scalar("d")
	u.loop(n, 1, []*stream{dst, dy, v}, func(k int, t *tail) { u.store(of(u.load(dy, k, t), u.load(v, k, t), c, d), dst, k, t) })
	u.end()
}

// geluInner is twice the argument of GELU's hyperbolic tangent.
func (u unit) geluInner(x vector) vector {
	p := u.all(num(2 * tanhScale * tanhCubic))
	return u.mul(u.fma(p, u.mul(x, x), num(2*tanhScale)), x)
}

// logistic is the sigmoid, which is 0 far below 0, and its derivative.
func (u unit) logistic(x vector) (s, bend vector) {
	e := u.expMinus(u.minusAbs(x))
	if !u.long() { // e is not 0 for -Inf
		e = u.choose(u.cmp(lessThan, x, num(-699)), u.zero(), e)
	}
	q := u.div(u.all(num(1)), u.add(e, num(1)))
	bend = u.mul(e, q)
	s = u.choose(u.cmp(lessThan, x, num(0)), bend, q)
	return s, u.mul(bend, q)
}

// softplus is log(1 + exp(x)).
func (u unit) softplus(x vector) vector {
	return u.add(u.log1p(u.expMinus(u.minusAbs(x))), u.max(u.zero(), x))
}
