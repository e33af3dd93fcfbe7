package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unit describes how a function computes: with the registers of a level, and with numbers of calc
// bytes that have elem bytes in memory. Functions of float32 that must round only once compute in
// float64.
type unit struct {
	wide       bool // AVX-512, otherwise AVX2
	elem, calc int
	precise    bool // with all digits of float64, whatever the elements are
}

// vector is a register of numbers.
type vector = reg.VecVirtual

// Op is an operand: a vector, or a constant.
type Op = operand.Op

func (u unit) bytes() int {
	if u.wide {
		return 64
	}
	return 32
}

// lanes returns how many numbers a register holds.
func (u unit) lanes() int { return u.bytes() / u.calc }

// name returns the name of a function in Go.
func (u unit) name(function string) string {
	level := "AVX2"
	if u.wide {
		level = "AVX512"
	}
	return fmt.Sprintf("%sFloat%d%s", function, 8*u.elem, level)
}

// float returns the Go type of the elements.
func (u unit) float() string { return fmt.Sprintf("float%d", 8*u.elem) }

func (u unit) new() vector {
	if u.wide {
		return build.ZMM()
	}
	return build.YMM()
}

// constant is a number, or the bits of one, for all lanes.
type constant struct {
	bits uint64
	raw  bool
}

// Asm is never printed, because emit replaces the constant.
func (c constant) Asm() string { panic("a constant that is no operand") }

func num(v float64) constant { return constant{bits: math.Float64bits(v)} }

func bits(v uint64) constant { return constant{bits: v, raw: true} }

var constants = map[string]operand.Mem{}

// memory returns where a constant is stored: once if it can be broadcast, otherwise once per lane.
func (u unit) memory(c constant) operand.Mem {
	v := c.bits
	if u.calc == 4 && !c.raw {
		v = uint64(math.Float32bits(float32(math.Float64frombits(c.bits))))
	}
	n := 32 / u.calc
	if u.wide {
		n = 1
	}
	name := fmt.Sprintf("k%dx%d_%x", u.calc*8, n, v)
	m, ok := constants[name]
	if ok {
		return m
	}
	m = build.GLOBL(name, attr.RODATA|attr.NOPTR)
	for i := range n {
		if u.calc == 4 {
			build.DATA(4*i, operand.U32(v))
		} else {
			build.DATA(8*i, operand.U64(v))
		}
	}
	constants[name] = m
	return m
}

type emitter = func(...operand.Op)

// instruction is an instruction for float32 and one for float64, for registers and for a broadcast
// number in memory.
type instruction struct{ ps, pd, psb, pdb emitter }

var (
	addition = instruction{build.VADDPS, build.VADDPD, build.VADDPS_BCST, build.VADDPD_BCST}
	subtract = instruction{build.VSUBPS, build.VSUBPD, build.VSUBPS_BCST, build.VSUBPD_BCST}
	multiply = instruction{build.VMULPS, build.VMULPD, build.VMULPS_BCST, build.VMULPD_BCST}
	divide   = instruction{build.VDIVPS, build.VDIVPD, build.VDIVPS_BCST, build.VDIVPD_BCST}
	greater  = instruction{build.VMAXPS, build.VMAXPD, build.VMAXPS_BCST, build.VMAXPD_BCST}
	lesser   = instruction{build.VMINPS, build.VMINPD, build.VMINPS_BCST, build.VMINPD_BCST}
	root     = instruction{build.VSQRTPS, build.VSQRTPD, build.VSQRTPS_BCST, build.VSQRTPD_BCST}
	conjunct = instruction{build.VANDPS, build.VANDPD, build.VANDPS_BCST, build.VANDPD_BCST}
	disjunct = instruction{build.VORPS, build.VORPD, build.VORPS_BCST, build.VORPD_BCST}
	exclude  = instruction{build.VXORPS, build.VXORPD, build.VXORPS_BCST, build.VXORPD_BCST}
	fma213   = instruction{build.VFMADD213PS, build.VFMADD213PD, build.VFMADD213PS_BCST, build.VFMADD213PD_BCST}
	fma231   = instruction{build.VFMADD231PS, build.VFMADD231PD, build.VFMADD231PS_BCST, build.VFMADD231PD_BCST}
	fnma213  = instruction{build.VFNMADD213PS, build.VFNMADD213PD, build.VFNMADD213PS_BCST, build.VFNMADD213PD_BCST}
	fnma231  = instruction{build.VFNMADD231PS, build.VFNMADD231PD, build.VFNMADD231PS_BCST, build.VFNMADD231PD_BCST}
	fmsub213 = instruction{build.VFMSUB213PS, build.VFMSUB213PD, build.VFMSUB213PS_BCST, build.VFMSUB213PD_BCST}
	addWhole = instruction{build.VPADDD, build.VPADDQ, build.VPADDD_BCST, build.VPADDQ_BCST}
	subWhole = instruction{build.VPSUBD, build.VPSUBQ, build.VPSUBD_BCST, build.VPSUBQ_BCST}
)

// emit emits an instruction, whose first operand may be a constant.
func (u unit) emit(i instruction, x Op, rest ...Op) {
	f, broadcast := i.ps, i.psb
	if u.calc == 8 {
		f, broadcast = i.pd, i.pdb
	}
	if c, ok := x.(constant); ok {
		x = u.memory(c)
		if u.wide {
			f = broadcast
		}
	}
	f(append([]operand.Op{x}, rest...)...)
}

// two emits an instruction with two operands.
func (u unit) two(i instruction, a vector, b Op) vector {
	d := u.new()
	u.emit(i, b, a, d)
	return d
}

func (u unit) add(a vector, b Op) vector { return u.two(addition, a, b) }
func (u unit) sub(a vector, b Op) vector { return u.two(subtract, a, b) }
func (u unit) mul(a vector, b Op) vector { return u.two(multiply, a, b) }
func (u unit) div(a vector, b Op) vector { return u.two(divide, a, b) }
func (u unit) and(a vector, b Op) vector { return u.two(conjunct, a, b) }
func (u unit) or(a vector, b Op) vector  { return u.two(disjunct, a, b) }
func (u unit) xor(a vector, b Op) vector { return u.two(exclude, a, b) }

// max and min are b if a or b is NaN, or if both are 0.
func (u unit) max(a vector, b Op) vector { return u.two(greater, a, b) }
func (u unit) min(a vector, b Op) vector { return u.two(lesser, a, b) }

func (u unit) sqrt(a Op) vector {
	d := u.new()
	u.emit(root, a, d)
	return d
}

// all returns the operand in a register.
func (u unit) all(x Op) vector {
	d := u.new()
	c, ok := x.(constant)
	switch {
	case ok && u.wide && u.calc == 8:
		build.VBROADCASTSD(u.memory(c), d)
	case ok && u.wide:
		build.VBROADCASTSS(u.memory(c), d)
	case ok:
		build.VMOVUPD(u.memory(c), d)
	default:
		build.VMOVAPD(x, d)
	}
	return d
}

// fill broadcasts a number in memory to all lanes. The number has elem bytes, or from bytes if that
// is not 0.
func (u unit) fill(m operand.Mem, from int) vector {
	d := u.new()
	if from == 0 {
		from = u.elem
	}
	switch {
	case from == 8:
		build.VBROADCASTSD(m, d)
	case u.calc == 4:
		build.VBROADCASTSS(m, d)
	default:
		x := build.XMM()
		build.VCVTSS2SD(m, zeros(), x)
		build.VBROADCASTSD(x, d)
	}
	return d
}

func zeros() reg.VecVirtual {
	x := build.XMM()
	build.VXORPS(x, x, x)
	return x
}

// fma computes a*b + c into a.
func (u unit) fma(a, b vector, c Op) vector {
	u.emit(fma213, c, b, a)
	return a
}

// fnma computes c - a*b into a.
func (u unit) fnma(a, b vector, c Op) vector {
	u.emit(fnma213, c, b, a)
	return a
}

// accumulate adds a*b to d.
func (u unit) accumulate(d, a vector, b Op) { u.emit(fma231, b, a, d) }

// deduct subtracts a*b from d.
func (u unit) deduct(d, a vector, b Op) { u.emit(fnma231, b, a, d) }

// horner is the polynomial of r with these coefficients, the constant one first.
func (u unit) horner(r vector, coefficients []float64) vector {
	last := len(coefficients) - 1
	p := u.all(num(coefficients[last]))
	for i := last - 1; i >= 0; i-- {
		p = u.fma(p, r, num(coefficients[i]))
	}
	return p
}

// Predicates of comparisons. They are false for NaN, unless the comment says otherwise.
const (
	lessThan    = 0x11
	atMost      = 0x12
	greaterThan = 0x1e
	atLeast     = 0x1d
	equal       = 0x00
	unordered   = 0x03 // true if one is NaN
	notEqual    = 0x04 // true for NaN
	notAtMost   = 0x16 // true for NaN
	notAtLeast  = 0x19 // true for NaN
)

// condition holds for some lanes.
type condition = reg.Register

// cmp compares a with b.
func (u unit) cmp(predicate uint8, a vector, b Op) condition {
	i := instruction{build.VCMPPS, build.VCMPPD, build.VCMPPS_BCST, build.VCMPPD_BCST}
	var d reg.Register
	if u.wide {
		d = build.K()
	} else {
		d = build.YMM()
	}
	f, broadcast := i.ps, i.psb
	if u.calc == 8 {
		f, broadcast = i.pd, i.pdb
	}
	if c, ok := b.(constant); ok {
		b = u.memory(c)
		if u.wide {
			f = broadcast
		}
	}
	f(operand.U8(predicate), b, a, d)
	return d
}

// choose is yes where the condition holds, otherwise no.
func (u unit) choose(when condition, yes Op, no vector) vector {
	d := u.new()
	if c, ok := yes.(constant); ok {
		yes = u.all(c)
	}
	switch {
	case u.wide && u.calc == 8:
		build.VBLENDMPD(yes, no, when, d)
	case u.wide:
		build.VBLENDMPS(yes, no, when, d)
	case u.calc == 8:
		build.VBLENDVPD(when, yes, no, d)
	default:
		build.VBLENDVPS(when, yes, no, d)
	}
	return d
}

// only is x where the condition holds, otherwise 0.
func (u unit) only(when condition, x vector) vector {
	d := u.new()
	switch {
	case u.wide && u.calc == 8:
		build.VMOVAPD_Z(x, when, d)
	case u.wide:
		build.VMOVAPS_Z(x, when, d)
	default:
		build.VANDPS(x, when, d)
	}
	return d
}

const (
	signBit64 = 1 << 63
	signBit32 = 1 << 31
)

func (u unit) signBit() constant {
	if u.calc == 8 {
		return bits(signBit64)
	}
	return bits(signBit32)
}

func (u unit) abs(x vector) vector {
	if u.calc == 8 {
		return u.and(x, bits(signBit64-1))
	}
	return u.and(x, bits(signBit32-1))
}

func (u unit) neg(x vector) vector { return u.xor(x, u.signBit()) }

// withSign is x, which must not be negative, with the sign of s.
func (u unit) withSign(x, s vector) vector { return u.or(x, u.and(s, u.signBit())) }

// shiftLeft shifts integers.
func (u unit) shiftLeft(x vector, by int) vector {
	d := u.new()
	if u.calc == 8 {
		build.VPSLLQ(operand.U8(by), x, d)
	} else {
		build.VPSLLD(operand.U8(by), x, d)
	}
	return d
}
