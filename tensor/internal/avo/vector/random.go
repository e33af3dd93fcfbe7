package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// random writes Philox4x32 with ten rounds, for as many counters at a time as a register has 64-bit
// lanes. Until the end only the lower halves of the lanes count, because a multiplication takes
// only those.
func random() {
	for _, wide := range []bool{false, true} {
		u := unit{wide: wide, elem: 8, calc: 8}
		level := map[bool]string{false: "AVX2", true: "AVX512"}[wide]
		build.TEXT("philox"+level, attr.NOSPLIT, "func(dst *uint32, n int, counter, stream, seed uint64)")
		build.Pragma("noescape")
		build.Doc("philox" + level + " sets dst to the words of n counters from counter on. n must be a multiple of 8.")
		dst := build.Load(build.Param("dst"), build.GP64()).(reg.GPVirtual)
		n := build.Load(build.Param("n"), build.GP64()).(reg.GPVirtual)
		counter := u.add64(u.double("counter"), u.order())
		stream, seed := u.double("stream"), u.double("seed")
		stream1, seed1 := u.shiftRight32(stream), u.shiftRight32(seed)
		build.Label("counters")
		c := [4]vector{counter, u.shiftRight32(counter), stream, stream1}
		k := [2]vector{seed, seed1}
		m := [2]vector{u.all(bits(0xD2511F53)), u.all(bits(0xCD9E8D57))}
		for round := range 10 {
			if round > 0 {
				k = [2]vector{u.add64(k[0], bits(0x9E3779B9)), u.add64(k[1], bits(0xBB67AE85))}
			}
			a, b := u.mul32(c[0], m[0]), u.mul32(c[2], m[1])
			c = [4]vector{u.xor(u.xor(u.shiftRight32(b), c[1]), k[0]), b, u.xor(u.xor(u.shiftRight32(a), c[3]), k[1]), a}
		}
		first, second := u.pair(c[0], c[1]), u.pair(c[2], c[3])
		low, high := u.new(), u.new()
		build.VPUNPCKLQDQ(second, first, low)
		build.VPUNPCKHQDQ(second, first, high)
		u.move(low, operand.Mem{Base: dst})
		u.move(high, operand.Mem{Base: dst, Disp: u.bytes()})
		u.emit(addWhole, bits(uint64(u.lanes())), counter, counter)
		build.ADDQ(operand.I32(int32(2*u.bytes())), dst)
		build.SUBQ(operand.I32(int32(u.lanes())), n)
		build.JG(operand.LabelRef("counters"))
		u.end()
	}
}

// order is the order of the counters in the lanes. It is chosen so that pairs of words are
// consecutive after unpacking.
func (u unit) order() operand.Mem {
	order := []uint64{0, 2, 1, 3}
	name := "order4"
	if u.wide {
		order, name = []uint64{0, 4, 1, 5, 2, 6, 3, 7}, "order8"
	}
	m := build.GLOBL(name, attr.RODATA|attr.NOPTR)
	for i, v := range order {
		build.DATA(8*i, operand.U64(v))
	}
	return m
}

func (u unit) add64(a vector, b Op) vector { return u.two(addWhole, a, b) }

func (u unit) mul32(a, b vector) vector {
	d := u.new()
	build.VPMULUDQ(b, a, d)
	return d
}

func (u unit) shiftRight32(x vector) vector {
	d := u.new()
	build.VPSRLQ(operand.U8(32), x, d)
	return d
}

// pair returns the lower halves of a, with those of b in the upper halves.
func (u unit) pair(a, b vector) vector {
	return u.or(u.and(a, bits(1<<32-1)), u.shiftLeft(b, 32))
}
