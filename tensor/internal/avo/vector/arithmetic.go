package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// arithmetic writes the elementwise functions of a few instructions. They round like plain Go, so
// nothing is fused.
func arithmetic() {
	for _, f := range []struct {
		name, doc string
		of        func(u unit, a, b vector) vector
	}{
		{"add", "sets dst to a + b", func(u unit, a, b vector) vector { return u.add(a, b) }},
		{"sub", "sets dst to a - b", func(u unit, a, b vector) vector { return u.sub(a, b) }},
		{"mul", "sets dst to a * b", func(u unit, a, b vector) vector { return u.mul(a, b) }},
		{"div", "sets dst to a / b", func(u unit, a, b vector) vector { return u.div(a, b) }},
		{"reluGrad", "sets dst to 0 if b <= 0, else to a", func(u unit, dy, y vector) vector {
			return u.only(u.cmp(notAtMost, y, num(0)), dy)
		}},
		{"tanhGrad", "sets dst to a * ((1 - b)(1 + b))", func(u unit, dy, y vector) vector {
			one := u.all(num(1))
			return u.mul(u.mul(u.sub(one, y), u.add(y, one)), dy)
		}},
		{"sigmoidGrad", "sets dst to a * b * (1 - b)", func(u unit, dy, y vector) vector {
			return u.mul(u.mul(dy, y), u.sub(u.all(num(1)), y))
		}},
		{"sqrtGrad", "sets dst to a / (2b)", func(u unit, dy, y vector) vector { return u.div(dy, u.add(y, y)) }},
		{"squareGrad", "sets dst to a * 2b", func(u unit, dy, x vector) vector { return u.mul(dy, u.add(x, x)) }},
		{"maximum", "sets dst to max(a, b), or NaN", func(u unit, a, b vector) vector {
			return u.choose(u.cmp(unordered, a, a), a, u.max(a, b))
		}},
		{"minimum", "sets dst to min(a, b), or NaN", func(u unit, a, b vector) vector {
			return u.choose(u.cmp(unordered, a, a), a, u.min(a, b))
		}},
		{"addReLU", "sets dst to 0 if a + b < 0, else to a + b", func(u unit, a, b vector) vector {
			zero := u.all(num(0))
			return u.max(zero, u.add(a, b))
		}},
	} {
		eachUnit(false, func(u unit) { u.binary(f.name, f.doc, func(a, b vector) vector { return f.of(u, a, b) }) })
	}
	for _, f := range []struct {
		name, doc string
		of        func(u unit, x, c, d vector) vector
	}{
		{"neg", "sets dst to -x", func(u unit, x, _, _ vector) vector { return u.neg(x) }},
		{"abs", "sets dst to |x|", func(u unit, x, _, _ vector) vector { return u.abs(x) }},
		{"sqrt", "sets dst to the square root of x", func(u unit, x, _, _ vector) vector { return u.sqrt(x) }},
		{"square", "sets dst to x * x", func(u unit, x, _, _ vector) vector { return u.mul(x, x) }},
		{"relu", "sets dst to 0 if x < 0, else to x", func(u unit, x, _, _ vector) vector {
			return u.max(u.all(num(0)), x)
		}},
		{"addConst", "sets dst to x + c", func(u unit, x, c, _ vector) vector { return u.add(x, c) }},
		{"mulConst", "sets dst to x * c", func(u unit, x, c, _ vector) vector { return u.mul(x, c) }},
		{"leakyReLU", "sets dst to x where that is positive, and to x * c elsewhere", func(u unit, x, c, _ vector) vector {
			return u.choose(u.cmp(greaterThan, x, num(0)), x, u.mul(x, c))
		}},
		{"clamp", "sets dst to x between c and d", func(u unit, x, c, d vector) vector { return u.min(d, u.max(c, x)) }},
	} {
		eachUnit(false, func(u unit) { u.unary(f.name, f.doc, 4, func(x, c, d vector) vector { return f.of(u, x, c, d) }) })
	}
}

// unary writes a function of x and two numbers.
func (u unit) unary(name, doc string, unroll int, of func(x, c, d vector) vector) {
	u.function(name, fmt.Sprintf("func(dst, x *%s, n int, c, d %[1]s)", u.float()), doc+".")
	dst, x := argument("dst", u.elem), argument("x", u.elem)
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	c, d := u.scalar("c"), u.scalar("d")
	u.loop(n, unroll, []*stream{dst, x}, func(k int, t *tail) { u.store(of(u.load(x, k, t), c, d), dst, k, t) })
	u.end()
}

// scalar broadcasts a parameter to all lanes.
func (u unit) scalar(name string) vector {
	b, err := build.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return u.fill(b.Addr, 0)
}

// binary writes a function of a and b. Each has stride 1, or stride 0 for one number instead of
// many.
func (u unit) binary(name, doc string, of func(a, b vector) vector) {
	u.function(name, fmt.Sprintf("func(dst, a, b *%s, n, sa, sb int)", u.float()), doc+". The strides sa and sb are 0 or 1.")
	dst, a, b := argument("dst", u.elem), argument("a", u.elem), argument("b", u.elem)
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	u.stepped(a, "sa")
	u.stepped(b, "sb")
	u.loop(n, 1, []*stream{dst, a, b}, func(k int, t *tail) { u.store(of(u.load(a, k, t), u.load(b, k, t)), dst, k, t) })
	u.end()
}

// stepped sets a stream's stride from the parameter: 1 or 0 elements. A single number is spread
// over a vector on the stack, so that it is read like the others.
func (u unit) stepped(s *stream, param string) {
	s.step = build.Load(build.Param(param), build.GP64()).(reg.GPVirtual)
	walks := param + "walks"
	build.TESTQ(s.step, s.step)
	build.JNE(operand.LabelRef(walks))
	spread := build.AllocLocal(u.bytes())
	one := unit{wide: u.wide, elem: s.size, calc: s.size}
	one.move(one.fill(operand.Mem{Base: s.at}, s.size), spread)
	build.LEAQ(spread, s.at)
	build.Label(walks)
	shift := map[int]int{16: 4, 32: 5, 64: 6}[u.lanes()*s.size]
	build.SHLQ(operand.U8(shift), s.step)
}
