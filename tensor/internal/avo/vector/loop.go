package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// stream is an argument over which a loop iterates. Its elements have size bytes. It is one element
// for all if step is 0 at run time.
type stream struct {
	at   reg.GPVirtual
	size int
	step reg.GPVirtual // bytes from vector to vector; nil: lanes times size
}

// argument returns a pointer parameter of the function.
func argument(name string, size int) *stream {
	return &stream{at: build.Load(build.Param(name), build.GP64()).(reg.GPVirtual), size: size}
}

// tail describes the lanes of the last vector; nil means all lanes.
type tail struct {
	k          condition // AVX-512
	elem, calc condition // AVX2: masks of the elements in memory, and in registers
}

// valid returns the condition for numbers in registers.
func (t *tail) valid(u unit) condition {
	if u.wide {
		return t.k
	}
	return t.calc
}

var maskTable = map[int]operand.Mem{}

// masks is a table of integers of size bytes: as many of -1 as there are lanes in 32 bytes, then as
// many of 0.
func masks(size int) operand.Mem {
	if m, ok := maskTable[size]; ok {
		return m
	}
	name := map[int]string{4: "masks32", 8: "masks64"}[size]
	m := build.GLOBL(name, attr.RODATA|attr.NOPTR)
	for i := range 8 {
		v := ^uint64(0)
		if i >= 4 {
			v = 0
		}
		build.DATA(8*i, operand.U64(v))
	}
	maskTable[size] = m
	return m
}

// partial returns the tail for n numbers, 0 < n < lanes.
func (u unit) partial(n reg.GPVirtual) *tail {
	if u.wide {
		build.MOVQ(n, reg.RCX)
		one := build.GP64()
		build.MOVQ(operand.I32(1), one)
		build.SHLQ(reg.CL, one)
		build.DECQ(one)
		k := build.K()
		build.KMOVW(one.As32(), k)
		return &tail{k: k}
	}
	mask := func(size int, x vector) vector {
		p, back := build.GP64(), build.GP64()
		build.LEAQ(masks(size).Offset(32), p)
		build.MOVQ(n, back)
		build.NEGQ(back)
		build.VMOVUPS(operand.Mem{Base: p, Index: back, Scale: uint8(size)}, x)
		return x
	}
	t := &tail{calc: mask(u.calc, build.YMM())}
	t.elem = t.calc
	if u.elem != u.calc {
		t.elem = mask(u.elem, build.XMM())
	}
	return t
}

// load reads vector number k after the stream's position. Lanes beyond the tail are 0.
func (u unit) load(s *stream, k int, t *tail) vector {
	m := operand.Mem{Base: s.at, Disp: k * u.lanes() * s.size}
	d := u.new()
	switch {
	case s.size == u.calc && t == nil:
		u.move(m, d)
	case s.size == u.calc && u.wide && u.calc == 8:
		build.VMOVUPD_Z(m, t.k, d)
	case s.size == u.calc && u.wide:
		build.VMOVUPS_Z(m, t.k, d)
	case s.size == u.calc && u.calc == 8:
		build.VMASKMOVPD(m, t.calc, d)
	case s.size == u.calc:
		build.VMASKMOVPS(m, t.calc, d)
	case t == nil:
		build.VCVTPS2PD(m, d)
	case u.wide:
		build.VCVTPS2PD_Z(m, t.k, d)
	default:
		x := build.XMM()
		build.VMASKMOVPS(m, t.elem, x)
		build.VCVTPS2PD(x, d)
	}
	return d
}

func (u unit) move(from, to operand.Op) {
	if u.calc == 8 {
		build.VMOVUPD(from, to)
	} else {
		build.VMOVUPS(from, to)
	}
}

// store writes vector number k after the stream's position.
func (u unit) store(v vector, s *stream, k int, t *tail) {
	m := operand.Mem{Base: s.at, Disp: k * u.lanes() * s.size}
	if s.size != u.calc {
		half := build.YMM()
		if u.wide {
			build.VCVTPD2PS(v, half)
		} else {
			half = build.XMM()
			build.VCVTPD2PSY(v, half)
		}
		switch {
		case t == nil:
			build.VMOVUPS(half, m)
		case u.wide:
			build.VMOVUPS(half, t.k, m)
		default:
			build.VMASKMOVPS(half, t.elem, m)
		}
		return
	}
	switch {
	case t == nil:
		u.move(v, m)
	case u.wide && u.calc == 8:
		build.VMOVUPD(v, t.k, m)
	case u.wide:
		build.VMOVUPS(v, t.k, m)
	case u.calc == 8:
		build.VMASKMOVPD(v, t.calc, m)
	default:
		build.VMASKMOVPS(v, t.calc, m)
	}
}

// loop calls body for all n elements of the streams: unroll vectors at a time, then one at a time,
// then the partial last one.
func (u unit) loop(n reg.GPVirtual, unroll int, streams []*stream, body func(k int, t *tail)) {
	l := u.lanes()
	step := func(vectors int) {
		for _, s := range streams {
			if s.step != nil {
				build.ADDQ(s.step, s.at)
			} else {
				build.ADDQ(operand.I32(int32(vectors*l*s.size)), s.at)
			}
		}
		build.SUBQ(operand.I32(int32(vectors*l)), n)
	}
	for _, vectors := range []int{unroll, 1} {
		label, end := map[bool]string{true: "vectors", false: "vector"}[vectors > 1], map[bool]string{true: "few", false: "rest"}[vectors > 1]
		if vectors == 1 && unroll == 1 {
			if end == "few" {
				continue
			}
		}
		build.Label(label)
		build.CMPQ(n, operand.I32(int32(vectors*l)))
		build.JLT(operand.LabelRef(end))
		for k := range vectors {
			body(k, nil)
		}
		step(vectors)
		build.JMP(operand.LabelRef(label))
		build.Label(end)
		if unroll == 1 {
			break
		}
	}
	build.TESTQ(n, n)
	build.JLE(operand.LabelRef("done"))
	body(0, u.partial(n))
	build.Label("done")
}

// function begins a function for the unit's level.
func (u unit) function(name, signature, doc string) {
	build.TEXT(u.name(name), attr.NOSPLIT, signature)
	build.Pragma("noescape")
	build.Doc(u.name(name) + " " + doc)
}

// end returns.
func (u unit) end() {
	build.VZEROUPPER()
	build.RET()
}

// eachUnit calls f for both levels and types. If double is set, functions compute in float64.
func eachUnit(double bool, f func(u unit)) {
	for _, wide := range []bool{false, true} {
		for _, elem := range []int{4, 8} {
			calc := elem
			if double {
				calc = 8
			}
			f(unit{wide: wide, elem: elem, calc: calc})
		}
	}
}
