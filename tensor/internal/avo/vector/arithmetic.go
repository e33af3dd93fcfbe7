package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// arithmetic are the elementwise functions that are a few instructions. They round as plain Go does: nothing is fused.
func arithmetic() {
	for _, f := range []struct {
		name, doc string
		of        func(u unit, a, b vector) vector
	}{
		{"add", "sets dst to a + b", func(u unit, a, b vector) vector { return u.add(a, b) }},
		{"sub", "sets dst to a - b", func(u unit, a, b vector) vector { return u.sub(a, b) }},
		{"mul", "sets dst to a * b", func(u unit, a, b vector) vector { return u.mul(a, b) }},
		{"div", "sets dst to a / b", func(u unit, a, b vector) vector { return u.div(a, b) }},
		{"reluGrad", "sets dst to a where b is not at most 0, and to 0 elsewhere", func(u unit, dy, y vector) vector {
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
		{"maximum", "sets dst to the greater of a and b, or NaN", func(u unit, a, b vector) vector {
			return u.choose(u.cmp(unordered, a, a), a, u.max(a, b))
		}},
		{"minimum", "sets dst to the lesser of a and b, or NaN", func(u unit, a, b vector) vector {
			return u.choose(u.cmp(unordered, a, a), a, u.min(a, b))
		}},
		{"addReLU", "sets dst to a + b where that is not negative, and to 0 elsewhere", func(u unit, a, b vector) vector {
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
		{"sqrt", "sets dst to the root of x", func(u unit, x, _, _ vector) vector { return u.sqrt(x) }},
		{"square", "sets dst to x * x", func(u unit, x, _, _ vector) vector { return u.mul(x, x) }},
		{"relu", "sets dst to x where that is not negative, and to 0 elsewhere", func(u unit, x, _, _ vector) vector {
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

// unary is a function of x and two numbers.
func (u unit) unary(name, doc string, unroll int, of func(x, c, d vector) vector) {
	u.function(name, fmt.Sprintf("func(dst, x *%s, n int, c, d %[1]s)", u.float()), doc+".")
	dst, x := argument("dst", u.elem), argument("x", u.elem)
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	c, d := u.scalar("c"), u.scalar("d")
	u.loop(n, unroll, []*stream{dst, x}, func(k int, t *tail) { u.store(of(u.load(x, k, t), c, d), dst, k, t) })
	u.end()
}

// scalar is a number that the function gets, in all lanes.
func (u unit) scalar(name string) vector {
	b, err := build.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return u.fill(b.Addr, 0)
}

// binary is a function of a and b, each of which is walked along if its step is 1, or is one number for all if that is 0.
func (u unit) binary(name, doc string, of func(a, b vector) vector) {
	u.function(name, fmt.Sprintf("func(dst, a, b *%s, n, sa, sb int)", u.float()), doc+". sa and sb are 1, or 0 for one number in place of many.")
	dst, a, b := argument("dst", u.elem), argument("a", u.elem), argument("b", u.elem)
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	u.stepped(a, "sa")
	u.stepped(b, "sb")
	u.loop(n, 1, []*stream{dst, a, b}, func(k int, t *tail) { u.store(of(u.load(a, k, t), u.load(b, k, t)), dst, k, t) })
	u.end()
}

// stepped makes a stream walk as far as the parameter says: 1 element for each of the others', or 0. One number for all is spread
// over a vector on the stack, so that it is read as others are.
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
