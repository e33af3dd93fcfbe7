package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// transpose sets dst[k][column] = src[column][k], for at most one register's columns. It loads
// sixteen bytes at a time of every column into lanes of registers, and then transposes 4x4 or 2x2
// elements within the lanes. That takes half the shuffles of a transposition of whole registers.
func (t target) transpose() {
	name := "transpose" + t.element() + t.level
	TEXT(name, NOSPLIT, "func(dst *byte, dks uintptr, src *byte, srs, k, columns uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s sets dst[k][column] to src[column][k], for 1 to %d columns.", name, t.lanes()))
	dst, dks := Load(Param("dst"), GP64()), Load(Param("dks"), GP64())
	srs, n := Load(Param("srs"), GP64()), Load(Param("k"), GP64())
	columns := Load(Param("columns"), GP64()).(reg.GPVirtual)
	block := t.lanes() // of k

	CMPQ(n, Imm(uint64(block)))
	JB(LabelRef("few"))

	// For missing columns the last one is read, and nothing is stored.
	pointers := AllocLocal(8 * t.lanes())
	p, next := Load(Param("src"), GP64()), GP64()
	for i := range t.lanes() {
		MOVQ(p, pointers.Offset(8*i))
		if i < t.lanes()-1 {
			LEAQ(Mem{Base: p, Index: srs, Scale: 1}, next)
			CMPQ(columns, Imm(uint64(i+1)))
			CMOVQHI(next, p)
		}
	}
	spare := t.register()
	m := t.newMask(columns, 1, spare)
	at := GP64()
	XORQ(at, at)

	Label("block")
	lane := 16 / t.size
	chunks := block / lane
	v := make([][]reg.VecVirtual, chunks)
	for j := range v {
		v[j] = t.registers(lane)
	}
	for i := range t.lanes() {
		MOVQ(pointers.Offset(8*i), p)
		for j := range chunks {
			from := Mem{Base: p, Index: at, Scale: 1, Disp: 16 * j}
			to := v[j][i%lane]
			switch {
			case i < lane:
				t.load(from, to.AsX())
			case t.wide() && t.size == 4:
				VINSERTF32X4(Imm(uint64(i/lane)), from, to, to)
			case t.wide():
				VINSERTF64X2(Imm(uint64(i/lane)), from, to, to)
			default:
				VINSERTF128(Imm(uint64(i/lane)), from, to, to)
			}
		}
	}
	t.lanesToRows(v, func(r reg.VecVirtual) {
		m.store(0, r, Mem{Base: dst})
		ADDQ(dks, dst)
	})
	ADDQ(Imm(uint64(t.bytes)), at)
	SUBQ(Imm(uint64(block)), n)
	CMPQ(n, Imm(uint64(block)))
	JAE(LabelRef("block"))
	TESTQ(n, n)
	JZ(LabelRef("done"))
	// The last block ends at k and overlaps the one before it, with the same elements.
	back := GP64()
	MOVQ(U32(block), back)
	SUBQ(n, back)
	MOVQ(U32(block), n)
	over := GP64()
	MOVQ(back, over)
	IMULQ(dks, over)
	SUBQ(over, dst)
	SHLQ(Imm(log2(t.size)), back)
	SUBQ(back, at)
	JMP(LabelRef("block"))

	Label("few")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	from := Load(Param("src"), GP64())
	Label("row")
	in, out, left, element := GP64(), GP64(), GP64(), GP64()
	MOVQ(from, in)
	MOVQ(dst, out)
	MOVQ(columns, left)
	Label("element")
	if t.size == 4 {
		MOVL(Mem{Base: in}, element.As32())
		MOVL(element.As32(), Mem{Base: out})
	} else {
		MOVQ(Mem{Base: in}, element)
		MOVQ(element, Mem{Base: out})
	}
	ADDQ(srs, in)
	ADDQ(Imm(uint64(t.size)), out)
	DECQ(left)
	JNZ(LabelRef("element"))
	ADDQ(Imm(uint64(t.size)), from)
	ADDQ(dks, dst)
	DECQ(n)
	JNZ(LabelRef("row"))
	Label("done")
	VZEROUPPER()
	RET()
}

// lanesToRows transposes within lanes, and calls store with the rows in order. v[j] holds the
// elements from j*lane on of lane columns, with a register for each column.
func (t target) lanesToRows(v [][]reg.VecVirtual, store func(reg.VecVirtual)) {
	low, high := t.register(), t.register()
	if t.size == 8 {
		for _, c := range v {
			VUNPCKLPD(c[1], c[0], low)
			VUNPCKHPD(c[1], c[0], high)
			store(low)
			store(high)
		}
		return
	}
	low2, high2, row := t.register(), t.register(), t.register()
	for _, c := range v {
		VUNPCKLPS(c[1], c[0], low)
		VUNPCKHPS(c[1], c[0], high)
		VUNPCKLPS(c[3], c[2], low2)
		VUNPCKHPS(c[3], c[2], high2)
		VUNPCKLPD(low2, low, row)
		store(row)
		VUNPCKHPD(low2, low, row)
		store(row)
		VUNPCKLPD(high2, high, row)
		store(row)
		VUNPCKHPD(high2, high, row)
		store(row)
	}
}

// copyRows sets dst[k][column] = src[k][column], for at most two registers' columns.
func (t target) copyRows() {
	name := "copyRows" + t.element() + t.level
	TEXT(name, NOSPLIT, "func(dst *byte, dks uintptr, src *byte, sks, k, columns uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s sets dst[k][column] to src[k][column], for 1 to %d columns and k > 0.", name, 2*t.lanes()))
	dst, dks := Load(Param("dst"), GP64()), Load(Param("dks"), GP64())
	src, sks := Load(Param("src"), GP64()), Load(Param("sks"), GP64())
	n := Load(Param("k"), GP64())
	columns := Load(Param("columns"), GP64()).(reg.GPVirtual)
	CMPQ(columns, Imm(uint64(2*t.lanes())))
	JNE(LabelRef("partly"))
	r := t.registers(2)
	Label("all")
	for i := range r {
		t.load(Mem{Base: src, Disp: i * t.bytes}, r[i])
	}
	for i := 0; i < 2*t.bytes; i += 64 {
		PREFETCHT0(Mem{Base: src, Disp: 2*t.bytes + i}) // of the next panel
	}
	for i := range r {
		t.load(r[i], Mem{Base: dst, Disp: i * t.bytes})
	}
	ADDQ(sks, src)
	ADDQ(dks, dst)
	DECQ(n)
	JNZ(LabelRef("all"))
	VZEROUPPER()
	RET()

	Label("partly")
	spare := t.register()
	m := t.newMask(columns, 2, spare)
	CMPQ(columns, Imm(uint64(t.lanes())))
	JBE(LabelRef("narrow"))
	for _, loop := range []struct {
		name      string
		registers int
	}{{"wide", 2}, {"narrow", 1}} {
		Label(loop.name)
		for i := range loop.registers {
			m.load(i, Mem{Base: src, Disp: i * t.bytes}, r[i])
			m.store(i, r[i], Mem{Base: dst, Disp: i * t.bytes})
		}
		ADDQ(sks, src)
		ADDQ(dks, dst)
		DECQ(n)
		JNZ(LabelRef(loop.name))
		VZEROUPPER()
		RET()
	}
}
