package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// mask describes which elements of some consecutive registers exist at the edge of a matrix. The
// others are neither read nor written.
type mask struct {
	t     target
	bits  []reg.OpmaskVirtual // AVX-512: one per register
	table Mem                 // AVX2: ones, then zeros, starting where they fit the columns
	spare reg.VecVirtual      // AVX2: the register into which a mask is loaded
}

// tables are the tables of AVX2, by the element's size.
var tables = map[int]Mem{}

// newMask returns the mask of some registers for a number of columns; it overwrites that number.
// With AVX2, every load and store overwrites spare.
func (t target) newMask(columns reg.GPVirtual, registers int, spare reg.VecVirtual) *mask {
	m := &mask{t: t, spare: spare}
	if t.wide() {
		ones := GP64()
		MOVQ(I64(-1), ones)
		all := GP64()
		BZHIQ(columns, ones, all)
		for i := range registers {
			k := K()
			if i > 0 {
				SHRQ(U8(t.lanes()), all)
			}
			if t.lanes() == 16 {
				KMOVW(all.As32(), k)
			} else {
				KMOVB(all.As32(), k)
			}
			m.bits = append(m.bits, k)
		}
		return m
	}
	table, ok := tables[t.size]
	if !ok {
		table = GLOBL("maskAVX2"+t.element(), 8|16) // RODATA|NOPTR
		for i := range 4 * t.lanes() {
			v := uint64(0)
			if i < 2*t.lanes() {
				v = math.MaxUint64
			}
			if t.size == 4 {
				DATA(i*4, U32(v&math.MaxUint32))
			} else {
				DATA(i*8, U64(v))
			}
		}
		tables[t.size] = table
	}
	at := GP64()
	LEAQ(table.Offset(2*t.bytes), at)
	back := GP64()
	MOVQ(columns, back)
	SHLQ(U8(log2(t.size)), back)
	SUBQ(back, at)
	m.table = Mem{Base: at}
	return m
}

func (m *mask) load(i int, from Mem, to reg.VecVirtual) {
	switch {
	case m.t.wide() && m.t.size == 4:
		VMOVUPS_Z(from, m.bits[i], to)
	case m.t.wide():
		VMOVUPD_Z(from, m.bits[i], to)
	case m.t.size == 4:
		VMOVUPS(m.table.Offset(i*32), m.spare)
		VMASKMOVPS(from, m.spare, to)
	default:
		VMOVUPD(m.table.Offset(i*32), m.spare)
		VMASKMOVPD(from, m.spare, to)
	}
}

func (m *mask) store(i int, from reg.VecVirtual, to Mem) {
	switch {
	case m.t.wide() && m.t.size == 4:
		VMOVUPS(from, m.bits[i], to)
	case m.t.wide():
		VMOVUPD(from, m.bits[i], to)
	case m.t.size == 4:
		VMOVUPS(m.table.Offset(i*32), m.spare)
		VMASKMOVPS(from, m.spare, to)
	default:
		VMOVUPD(m.table.Offset(i*32), m.spare)
		VMASKMOVPD(from, m.spare, to)
	}
}

func log2(n int) uint64 {
	k := uint64(0)
	for n > 1 {
		n, k = n/2, k+1
	}
	return k
}
