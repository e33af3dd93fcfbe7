package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// steps writes the steps of optimisers. They round like plain Go, so nothing is fused.
func steps() {
	eachUnit(false, func(u unit) {
		for _, greatest := range []bool{false, true} {
			u.adam(greatest)
		}
	})
	eachUnit(false, func(u unit) {
		u.sgd("sgd", false, false, false)
		for _, first := range []bool{false, true} {
			for _, nesterov := range []bool{false, true} {
				u.sgd("sgd"+map[bool]string{true: "First", false: "Momentum"}[first]+map[bool]string{true: "Nesterov"}[nesterov], true, first, nesterov)
			}
		}
	})
}

// field returns field i of the struct that a pointer points to, in all lanes.
func (u unit) field(p reg.GPVirtual, i int) vector {
	return u.fill(operand.Mem{Base: p, Disp: i * u.elem}, 0)
}

// decayed is the gradient d plus the decay of the parameters w. Without decay it is d, because 0
// times an infinite parameter is NaN.
func (u unit) decayed(d, decay, w vector, decays condition) vector {
	return u.choose(decays, u.add(d, u.mul(w, decay)), d)
}

func (u unit) adam(greatest bool) {
	name, params := "adam", "p, dp, m, v"
	if greatest {
		name, params = "adamGreatest", "p, dp, m, v, top"
	}
	u.function(name, fmt.Sprintf("func(%s *%s, n int, s *[9]%[2]s)", params, u.float()), "runs a step of Adam.")
	p, g, m, v := argument("p", u.elem), argument("dp", u.elem), argument("m", u.elem), argument("v", u.elem)
	streams := []*stream{p, g, m, v}
	var top *stream
	if greatest {
		top = argument("top", u.elem)
		streams = append(streams, top)
	}
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	s := build.Load(build.Param("s"), build.GP64()).(reg.GPVirtual)
	var k [9]vector
	for i := 2; i < 8; i++ {
		k[i] = u.field(s, i)
	}
	c1, b2, c2, eps, step, inverse := k[2], k[3], k[4], k[5], k[6], k[7]
	decays, early := u.cmp(notEqual, u.field(s, 1), num(0)), u.cmp(lessThan, c1, num(0.5))
	by := u.choose(early, c1, u.sub(c1, num(1)))
	// It keeps few numbers in registers, because AVX2 has only 16.
	u.loop(n, 1, streams, func(k int, t *tail) {
		w := u.mul(u.load(p, k, t), u.field(s, 0))
		d := u.decayed(u.mul(u.load(g, k, t), u.field(s, 8)), u.field(s, 1), w, decays)
		mi := u.load(m, k, t)
		mi = u.add(u.choose(early, mi, d), u.mul(u.sub(d, mi), by))
		vi := u.add(u.mul(u.load(v, k, t), b2), u.mul(u.mul(d, c2), d))
		u.store(mi, m, k, t)
		u.store(vi, v, k, t)
		if greatest {
			before := u.load(top, k, t)
			vi = u.choose(u.cmp(unordered, before, before), before, u.max(before, vi))
			u.store(vi, top, k, t)
		}
		bottom := u.add(u.mul(u.sqrt(vi), inverse), eps)
		u.store(u.sub(w, u.div(u.mul(mi, step), bottom)), p, k, t)
	})
	u.end()
}

func (u unit) sgd(name string, momentum, first, nesterov bool) {
	params := "p, dp"
	if momentum {
		params = "p, dp, buf"
	}
	u.function(name, fmt.Sprintf("func(%s *%s, n int, s *[5]%[2]s)", params, u.float()), "runs a step of stochastic gradient descent.")
	p, g := argument("p", u.elem), argument("dp", u.elem)
	streams := []*stream{p, g}
	var buf *stream
	if momentum {
		buf = argument("buf", u.elem)
		streams = append(streams, buf)
	}
	n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
	s := build.Load(build.Param("s"), build.GP64()).(reg.GPVirtual)
	lr, mom, keep, decay, sign := u.field(s, 0), u.field(s, 1), u.field(s, 2), u.field(s, 3), u.field(s, 4)
	decays := u.cmp(notEqual, decay, num(0))
	u.loop(n, 1, streams, func(k int, t *tail) {
		w := u.load(p, k, t)
		d := u.decayed(u.mul(u.load(g, k, t), sign), decay, w, decays)
		if momentum {
			v := d
			if !first {
				v = u.add(u.mul(u.load(buf, k, t), mom), u.mul(d, keep))
			}
			u.store(v, buf, k, t)
			if nesterov {
				d = u.add(d, u.mul(v, mom))
			} else {
				d = v
			}
		}
		u.store(u.sub(w, u.mul(d, lr)), p, k, t)
	})
	u.end()
}
