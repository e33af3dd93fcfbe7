package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func (t target) vectorProducts() {
	t.dots()
	t.addRows()
}

// dots computes the products of rows with a vector. Each row has four sums, no matter how many rows
// are computed at once.
func (t target) dots() {
	name := "dots" + t.element() + t.level
	TEXT(name, NOSPLIT, "func(dst *byte, dstStride uintptr, x *byte, xrs, rows uintptr, v *byte, k, add uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s sets dst[i] to the product of row i of x and v, or adds it, for rows and k > 0.", name))
	dst, dstStride := Load(Param("dst"), GP64()), Load(Param("dstStride"), GP64())
	x, xrs := Load(Param("x"), GP64()), Load(Param("xrs"), GP64())
	rows, v, k := Load(Param("rows"), GP64()), Load(Param("v"), GP64()), Load(Param("k"), GP64())
	together := 4
	if !t.wide() {
		together = 2
	}

	rest, several, singles := GP64(), GP64(), GP64()
	MOVQ(k, rest)
	ANDQ(Imm(uint64(t.lanes()-1)), rest)
	MOVQ(k, singles)
	SUBQ(rest, singles)
	SHLQ(U8(log2(t.size)), singles) // where whole registers end, in bytes
	MOVQ(k, several)
	ANDQ(I32(-4*t.lanes()), several)
	SHLQ(U8(log2(t.size)), several) // where groups of four do
	spare := t.register()
	m := t.newMask(rest, 1, spare)

	for _, n := range []int{together, 1} {
		label := func(s string) string { return fmt.Sprintf("%s%d", s, n) }
		Label(label("rows"))
		CMPQ(rows, Imm(uint64(n)))
		JB(LabelRef(label("end")))
		p := make([]reg.GPVirtual, n)
		sums := make([][]reg.VecVirtual, n)
		for i := range p {
			p[i] = GP64()
			if i == 0 {
				MOVQ(x, p[i])
			} else {
				LEAQ(Mem{Base: p[i-1], Index: xrs, Scale: 1}, p[i])
			}
			sums[i] = t.registers(4)
			for _, s := range sums[i] {
				t.zero(s)
			}
		}
		at := GP64()
		XORQ(at, at)
		a := t.register()
		Label(label("several"))
		CMPQ(at, several)
		JE(LabelRef(label("one")))
		for j := range 4 {
			t.load(Mem{Base: v, Index: at, Scale: 1, Disp: j * t.bytes}, a)
			for i := range n {
				t.fma(Mem{Base: p[i], Index: at, Scale: 1, Disp: j * t.bytes}, a, sums[i][j])
			}
		}
		ADDQ(I32(4*t.bytes), at)
		JMP(LabelRef(label("several")))
		Label(label("one"))
		CMPQ(at, singles)
		JE(LabelRef(label("rest")))
		t.load(Mem{Base: v, Index: at, Scale: 1}, a)
		for i := range n {
			t.fma(Mem{Base: p[i], Index: at, Scale: 1}, a, sums[i][0])
		}
		ADDQ(Imm(uint64(t.bytes)), at)
		JMP(LabelRef(label("one")))
		Label(label("rest"))
		TESTQ(rest, rest)
		JZ(LabelRef(label("sum")))
		m.load(0, Mem{Base: v, Index: at, Scale: 1}, a)
		b := t.register()
		for i := range n {
			m.load(0, Mem{Base: p[i], Index: at, Scale: 1}, b)
			t.fma(b, a, sums[i][0])
		}
		Label(label("sum"))
		for i := range n {
			t.add(sums[i][1], sums[i][0], sums[i][0])
			t.add(sums[i][3], sums[i][2], sums[i][2])
			t.add(sums[i][2], sums[i][0], sums[i][0])
			total := t.horizontal(sums[i][0])
			add := Load(Param("add"), GP64())
			TESTQ(add, add)
			JZ(LabelRef(label(fmt.Sprintf("set%dof", i))))
			if t.size == 4 {
				VADDSS(Mem{Base: dst}, total, total)
			} else {
				VADDSD(Mem{Base: dst}, total, total)
			}
			Label(label(fmt.Sprintf("set%dof", i)))
			if t.size == 4 {
				VMOVSS(total, Mem{Base: dst})
			} else {
				VMOVSD(total, Mem{Base: dst})
			}
			ADDQ(dstStride, dst)
		}
		LEAQ(Mem{Base: p[n-1], Index: xrs, Scale: 1}, x)
		SUBQ(Imm(uint64(n)), rows)
		JMP(LabelRef(label("rows")))
		Label(label("end"))
	}
	VZEROUPPER()
	RET()
}

// horizontal returns the sum of a register's elements.
func (t target) horizontal(s reg.VecVirtual) reg.Register {
	half := YMM()
	if t.wide() {
		VEXTRACTF64X4(Imm(1), s, half)
		t.add(half, s.AsY(), s.AsY())
	}
	if t.wide() {
		VEXTRACTF32X4(Imm(1), s.AsY(), half.AsX())
	} else {
		VEXTRACTF128(Imm(1), s.AsY(), half.AsX())
	}
	x, h := s.AsX(), half.AsX()
	t.add(h, x, x)
	if t.size == 8 {
		VUNPCKHPD(x, x, h)
		VADDSD(h, x, x)
		return x
	}
	VMOVHLPS(x, x, h)
	t.add(h, x, x)
	VMOVSHDUP(x, h)
	VADDSS(h, x, x)
	return x
}

// addRows adds rows, each times a factor, to a row. It adds several at once, in order, so that the
// sums are loaded and stored less often.
func (t target) addRows() {
	name := "addRows" + t.element() + t.level
	TEXT(name, NOSPLIT, "func(c *byte, columns uintptr, factors *byte, factorStride uintptr, x *byte, xrs, rows uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds rows > 0 of x, times their factors, to c.", name))
	c, columns := Load(Param("c"), GP64()), Load(Param("columns"), GP64()).(reg.GPVirtual)
	x, xrs, rows := Load(Param("x"), GP64()), Load(Param("xrs"), GP64()), Load(Param("rows"), GP64())
	rest, full := GP64(), GP64()
	MOVQ(columns, rest)
	ANDQ(Imm(uint64(t.lanes()-1)), rest)
	MOVQ(columns, full)
	SUBQ(rest, full)
	SHLQ(U8(log2(t.size)), full)
	spare := t.register()
	m := t.newMask(rest, 1, spare)
	f := Load(Param("factors"), GP64())
	for _, n := range []int{4, 1} {
		label := func(s string) string { return fmt.Sprintf("%s%d", s, n) }
		Label(label("rows"))
		CMPQ(rows, Imm(uint64(n)))
		JB(LabelRef(label("end")))
		stride := Load(Param("factorStride"), GP64())
		p := make([]reg.GPVirtual, n)
		factors := t.registers(n)
		for i := range n {
			p[i] = GP64()
			if i == 0 {
				MOVQ(x, p[i])
			} else {
				LEAQ(Mem{Base: p[i-1], Index: xrs, Scale: 1}, p[i])
			}
			t.broadcast(Mem{Base: f}, factors[i])
			ADDQ(stride, f)
		}
		at := GP64()
		XORQ(at, at)
		sum, b := t.register(), t.register()
		Label(label("full"))
		CMPQ(at, full)
		JE(LabelRef(label("rest")))
		t.load(Mem{Base: c, Index: at, Scale: 1}, sum)
		for i := range n {
			t.fma(Mem{Base: p[i], Index: at, Scale: 1}, factors[i], sum)
		}
		t.load(sum, Mem{Base: c, Index: at, Scale: 1})
		ADDQ(Imm(uint64(t.bytes)), at)
		JMP(LabelRef(label("full")))
		Label(label("rest"))
		TESTQ(rest, rest)
		JZ(LabelRef(label("next")))
		m.load(0, Mem{Base: c, Index: at, Scale: 1}, sum)
		for i := range n {
			m.load(0, Mem{Base: p[i], Index: at, Scale: 1}, b)
			t.fma(b, factors[i], sum)
		}
		m.store(0, sum, Mem{Base: c, Index: at, Scale: 1})
		Label(label("next"))
		LEAQ(Mem{Base: p[n-1], Index: xrs, Scale: 1}, x)
		SUBQ(Imm(uint64(n)), rows)
		JMP(LabelRef(label("rows")))
		Label(label("end"))
	}
	VZEROUPPER()
	RET()
}
