package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// finish adds a bias of rows and one of columns unless they are nil, and sets negative elements to
// 0 if relu is not 0.
func (t target) finish() {
	name := "finish" + t.element() + t.level
	TEXT(name, NOSPLIT, "func(c *byte, crs, rows, columns uintptr, rowBias, columnBias *byte, relu uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s applies a Finish to rows and columns, at least one of each.", name))
	c, crs := Load(Param("c"), GP64()), Load(Param("crs"), GP64())
	rows, columns := Load(Param("rows"), GP64()), Load(Param("columns"), GP64()).(reg.GPVirtual)
	rowBias, columnBias := Load(Param("rowBias"), GP64()), Load(Param("columnBias"), GP64())
	relu := Load(Param("relu"), GP64())
	zero, row, v, b, spare := t.register(), t.register(), t.register(), t.register(), t.register()
	t.zero(zero)

	rest, full := GP64(), GP64()
	MOVQ(columns, rest)
	ANDQ(Imm(uint64(t.lanes()-1)), rest)
	MOVQ(columns, full)
	SUBQ(rest, full)
	SHLQ(U8(log2(t.size)), full)
	m := t.newMask(rest, 1, spare)

	part := func(name string, load func(Mem, reg.VecVirtual), store func(reg.VecVirtual, Mem), at offset) {
		load(at.of(c), v)
		TESTQ(rowBias, rowBias)
		JZ(LabelRef(name + "NoRow"))
		t.add(row, v, v)
		Label(name + "NoRow")
		TESTQ(columnBias, columnBias)
		JZ(LabelRef(name + "NoColumn"))
		load(at.of(columnBias), b)
		t.add(b, v, v)
		Label(name + "NoColumn")
		TESTQ(relu, relu)
		JZ(LabelRef(name + "Store"))
		t.max(zero, v, v)
		Label(name + "Store")
		store(v, at.of(c))
	}

	Label("row")
	t.zero(row)
	TESTQ(rowBias, rowBias)
	JZ(LabelRef("begin"))
	t.broadcast(Mem{Base: rowBias}, row)
	ADDQ(Imm(uint64(t.size)), rowBias)
	Label("begin")
	at := GP64()
	XORQ(at, at)
	CMPQ(at, full)
	JE(LabelRef("tail"))
	Label("full")
	part("full", func(from Mem, to reg.VecVirtual) { t.load(from, to) }, func(r reg.VecVirtual, to Mem) { t.load(r, to) }, offset{at})
	ADDQ(Imm(uint64(t.bytes)), at)
	CMPQ(at, full)
	JNE(LabelRef("full"))
	Label("tail")
	TESTQ(rest, rest)
	JZ(LabelRef("next"))
	part("tail", func(from Mem, to reg.VecVirtual) { m.load(0, from, to) }, func(r reg.VecVirtual, to Mem) { m.store(0, r, to) }, offset{at})
	Label("next")
	ADDQ(crs, c)
	DECQ(rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// offset is an index relative to a base.
type offset struct{ index reg.Register }

func (r offset) of(base reg.Register) Mem { return Mem{Base: base, Index: r.index, Scale: 1} }
