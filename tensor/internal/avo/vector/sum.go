package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// join combines the numbers of a vector: upper halves with lower halves, until one is left in the
// first lane.
func (u unit) join(op instruction, v vector) vector {
	x := v
	if u.wide {
		high := build.YMM()
		build.VEXTRACTF64X4(operand.U8(1), x, high)
		d := build.YMM()
		u.emit(op, high, x.AsY(), d)
		x = d
	}
	high, d := build.XMM(), build.XMM()
	build.VEXTRACTF128(operand.U8(1), x.AsY(), high)
	u.emit(op, high, x.AsX(), d)
	swapped, e := build.XMM(), build.XMM()
	build.VPERMILPD(operand.U8(1), d, swapped)
	u.emit(op, swapped, d, e)
	if u.calc == 8 {
		return e
	}
	odd, f := build.XMM(), build.XMM()
	build.VMOVSHDUP(e, odd)
	u.emit(op, odd, e, f)
	return f
}

// zero returns a vector of zeros.
func (u unit) zero() vector {
	d := u.new()
	u.emit(exclude, d, d, d)
	return d
}

// accumulators are the sums of an unrolled loop.
func (u unit) accumulators(n int) []vector {
	all := make([]vector, n)
	for i := range all {
		all[i] = u.zero()
	}
	return all
}

// addInto adds v to the sum, except lanes beyond the tail.
func (u unit) addInto(sum, v vector, t *tail) {
	if t != nil {
		v = u.only(t.valid(u), v)
	}
	u.emit(addition, v, sum, sum)
}

// together returns the sum of all lanes of all accumulators.
func (u unit) together(sums []vector) vector {
	for n := len(sums) / 2; n > 0; n /= 2 {
		for i := range n {
			u.emit(addition, sums[i+n], sums[i], sums[i])
		}
	}
	return u.join(addition, sums[0])
}

func count() reg.GPVirtual { return build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual) }

// double broadcasts a float64 parameter to all lanes.
func (u unit) double(name string) vector {
	b, err := build.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return u.fill(b.Addr, 8)
}

const unrolled = 4

// sums writes reductions in float64.
func sums() {
	eachUnit(false, func(u unit) {
		u.function("greatest", "func(x *"+u.float()+", n int) "+u.float(), "returns the greatest number of x, ignoring NaN, or -Inf.")
		x := argument("x", u.elem)
		least := u.all(num(negativeInfinity))
		tops := make([]vector, unrolled)
		for i := range tops {
			tops[i] = u.all(least)
		}
		u.loop(count(), unrolled, []*stream{x}, func(k int, t *tail) {
			v := u.load(x, k, t)
			if t != nil {
				v = u.choose(t.valid(u), v, least)
			}
			u.emit(greater, tops[k], v, tops[k])
		})
		for n := unrolled / 2; n > 0; n /= 2 {
			for i := range n {
				u.emit(greater, tops[i+n], tops[i], tops[i])
			}
		}
		u.result(u.join(greater, tops[0]), 0, u.elem)
	})
	eachUnit(true, func(u unit) {
		u.reduction("total", "returns the sum of x.", []string{"x"}, "", func(v []vector, _ vector, sum vector, t *tail) {
			u.emit(addition, v[0], sum, sum)
		})
		u.reduction("dot", "returns the sum of the products of x and y.", []string{"x", "y"}, "", func(v []vector, _ vector, sum vector, t *tail) {
			u.accumulate(sum, v[0], v[1])
		})
		u.reduction("deviations", "returns the sum of the squares of x - mean.", []string{"x"}, "mean", func(v []vector, mean vector, sum vector, t *tail) {
			d := u.sub(v[0], mean)
			if t != nil {
				d = u.only(t.valid(u), d)
			}
			u.accumulate(sum, d, d)
		})
		u.precise = true
		u.reduction("sumExp", "returns the sum of exp(x - top).", []string{"x"}, "top", func(v []vector, top vector, sum vector, t *tail) {
			u.addInto(sum, u.expMinus(u.sub(v[0], top)), t)
		})
		u.dotDeviations()
		u.accumulateRows()
	})
}

// result returns the number in the first lane.
func (u unit) result(v vector, i, size int) {
	b, err := build.ReturnIndex(i).Resolve()
	if err != nil {
		panic(err)
	}
	if size == 8 {
		build.VMOVSD(v.AsX(), b.Addr)
	} else {
		build.VMOVSS(v.AsX(), b.Addr)
	}
	if i == 0 {
		u.end()
	}
}

// reduction writes a sum. add adds the terms of the operands' elements, and uses a number that all
// terms share.
func (u unit) reduction(name, doc string, operands []string, number string, add func(v []vector, number, sum vector, t *tail)) {
	signature := "func("
	for i, o := range operands {
		if i > 0 {
			signature += ", "
		}
		signature += o
	}
	signature += " *" + u.float() + ", n int"
	if number != "" {
		signature += ", " + number + " float64"
	}
	u.function(name, signature+") float64", doc)
	var streams []*stream
	for _, o := range operands {
		streams = append(streams, argument(o, u.elem))
	}
	n := count()
	var c vector
	if number != "" {
		c = u.double(number)
	}
	sums := u.accumulators(unrolled)
	u.loop(n, unrolled, streams, func(k int, t *tail) {
		var v []vector
		for _, s := range streams {
			v = append(v, u.load(s, k, t))
		}
		add(v, c, sums[k], t)
	})
	u.result(u.together(sums), 0, 8)
}

func (u unit) dotDeviations() {
	u.function("dotDeviations", "func(dy, x, w *"+u.float()+", n, sw int, mean float64) (sum, dot float64)",
		"returns the sums of dy w and of dy w (x - mean). sw is 0 or 1.")
	dy, x, w := argument("dy", u.elem), argument("x", u.elem), argument("w", u.elem)
	n := count()
	u.stepped(w, "sw")
	mean, sums, dots := u.double("mean"), u.accumulators(1), u.accumulators(1)
	u.loop(n, 1, []*stream{dy, x, w}, func(k int, t *tail) {
		g, d := u.mul(u.load(dy, k, t), u.load(w, k, t)), u.sub(u.load(x, k, t), mean)
		if t != nil {
			d = u.only(t.valid(u), d)
		}
		u.emit(addition, g, sums[0], sums[0])
		u.accumulate(dots[0], g, d)
	})
	u.result(u.together(dots), 1, 8)
	u.result(u.together(sums), 0, 8)
}

// accumulateRows writes sums of columns, which add one row at a time.
func (u unit) accumulateRows() {
	u.function("addTo", "func(sums *float64, x *"+u.float()+", n int)", "adds x to the sums.")
	sums, x := argument("sums", 8), argument("x", u.elem)
	u.loop(count(), unrolled, []*stream{sums, x}, func(k int, t *tail) {
		v, sum := u.load(x, k, t), u.load(sums, k, t)
		u.storeDouble(u.add(sum, v), sums, k, t)
	})
	u.end()

	u.function("addDeviations", "func(sums, dots *float64, dy, x *"+u.float()+", n int, mean, rstd float64)",
		"adds dy to the sums, and dy (x - mean) rstd to the dots.")
	sums, dots, dy, x := argument("sums", 8), argument("dots", 8), argument("dy", u.elem), argument("x", u.elem)
	n, mean, rstd := count(), u.double("mean"), u.double("rstd")
	u.loop(n, 1, []*stream{sums, dots, dy, x}, func(k int, t *tail) {
		g, d := u.load(dy, k, t), u.mul(u.sub(u.load(x, k, t), mean), rstd)
		u.storeDouble(u.add(u.load(sums, k, t), g), sums, k, t)
		dot := u.load(dots, k, t)
		u.accumulate(dot, g, d)
		u.storeDouble(dot, dots, k, t)
	})
	u.end()
}

// storeDouble stores the numbers of a function in float64 without conversion.
func (u unit) storeDouble(v vector, s *stream, k int, t *tail) {
	unit{wide: u.wide, elem: 8, calc: 8}.store(v, s, k, t)
}
