package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// kind describes the columns of a tile.
type kind struct {
	name      string
	registers int  // in a row
	masked    bool // there may be fewer columns than registers hold
}

var kinds = []kind{{"", 2, false}, {"Masked", 2, true}, {"Narrow", 1, true}}

// tiles writes the micro-kernels for every number of rows, because the rows of a matrix are
// distributed evenly over its panels.
func (t target) tiles() {
	for _, k := range kinds {
		for rows := 1; rows <= t.rows; rows++ {
			t.tile(k, rows)
		}
	}
}

// tile computes the product of rows of A and two registers' columns of B over k > 0. It keeps all
// sums in accumulators, to which C is set, or which are added to C. An element of a row is
// broadcast to a register once for all columns. Rows of A are ars bytes apart and its columns aks,
// so the same code reads a packed panel, A, and the transposed A.
func (t target) tile(k kind, rows int) {
	signature := "func(c *byte, crs uintptr, a *byte, ars, aks uintptr, b *byte, bks, k, add"
	if k.masked {
		signature += ", columns"
	}
	name := t.tileName(k, rows)
	TEXT(name, NOSPLIT, signature+" uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes a tile of height %d.", name, rows))
	crs, c := Load(Param("crs"), GP64()), Load(Param("c"), GP64())
	ars, aks := Load(Param("ars"), GP64()), Load(Param("aks"), GP64())
	b, bks := Load(Param("b"), GP64()), Load(Param("bks"), GP64())
	n := Load(Param("k"), GP64())

	// Three rows per base: the base itself, and one and two strides further.
	bases := make([]reg.Register, (rows+2)/3)
	bases[0] = Load(Param("a"), GP64())
	if len(bases) > 1 {
		three := GP64()
		LEAQ(Mem{Base: ars, Index: ars, Scale: 2}, three)
		for i := 1; i < len(bases); i++ {
			base := GP64()
			LEAQ(Mem{Base: bases[i-1], Index: three, Scale: 1}, base)
			bases[i] = base
		}
	}

	prefetch := GP64()
	MOVQ(c, prefetch)
	for i := range rows {
		PREFETCHT0(Mem{Base: prefetch})
		if k.registers == 2 {
			PREFETCHT0(Mem{Base: prefetch, Disp: 2*t.bytes - 1})
		}
		if i < rows-1 {
			ADDQ(crs, prefetch)
		}
	}

	sums := t.registers(rows * k.registers)
	for _, s := range sums {
		t.zero(s)
	}
	line, factor := t.registers(k.registers), t.register()
	var m *mask
	if k.masked {
		columns := Load(Param("columns"), GP64()).(reg.GPVirtual)
		m = t.newMask(columns, k.registers, factor)
	}
	step := func() {
		for i, r := range line {
			from := Mem{Base: b, Disp: i * t.bytes}
			if k.masked {
				m.load(i, from, r)
			} else {
				t.load(from, r)
			}
		}
		if !k.masked {
			for i := 0; i < 2*t.bytes; i += 64 {
				PREFETCHT0(Mem{Base: b, Index: bks, Scale: 8, Disp: i})
			}
		}
		ADDQ(bks, b)
		for i := range rows {
			from := Mem{Base: bases[i/3]}
			if i%3 > 0 {
				from.Index, from.Scale = ars, uint8(i%3)
			}
			t.broadcast(from, factor)
			for j, r := range line {
				t.fma(factor, r, sums[i*k.registers+j])
			}
			if i%3 == 2 || i == rows-1 {
				ADDQ(aks, bases[i/3])
			}
		}
	}
	unroll := 2
	if k.masked {
		unroll = 1
	}
	one, store := "one", "store"
	if unroll > 1 {
		SUBQ(Imm(uint64(unroll)), n)
		JB(LabelRef("rest"))
		Label("several")
		for range unroll {
			step()
		}
		SUBQ(Imm(uint64(unroll)), n)
		JAE(LabelRef("several"))
		Label("rest")
		ADDQ(Imm(uint64(unroll)), n)
		JZ(LabelRef(store))
	}
	Label(one)
	step()
	DECQ(n)
	JNZ(LabelRef(one))

	Label(store)
	add := Load(Param("add"), GP64())
	TESTQ(add, add)
	JZ(LabelRef("set"))
	old := line
	at := GP64()
	MOVQ(c, at)
	for i := range rows {
		for j := range k.registers {
			from, s := Mem{Base: at, Disp: j * t.bytes}, sums[i*k.registers+j]
			if k.masked {
				m.load(j, from, old[j])
				t.add(old[j], s, s)
			} else {
				t.add(from, s, s)
			}
		}
		if i < rows-1 {
			ADDQ(crs, at)
		}
	}
	Label("set")
	for i := range rows {
		for j := range k.registers {
			to, s := Mem{Base: c, Disp: j * t.bytes}, sums[i*k.registers+j]
			if k.masked {
				m.store(j, s, to)
			} else {
				t.load(s, to)
			}
		}
		if i < rows-1 {
			ADDQ(crs, c)
		}
	}
	VZEROUPPER()
	RET()
}
