// Command gemm writes the assembly of package gemm for amd64: its micro-kernels, the primitives
// that pack factors, the products with a vector, and the code that finishes elements.
package main

import (
	"bytes"
	"flag"
	"log"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// target is a level and an element type.
type target struct {
	level string // as in the suffixes of functions' names
	bytes int    // of a vector register
	rows  int    // the most rows of a tile
	size  int    // of an element
}

func main() {
	level := flag.String("level", "avx512", "avx512 or avx2")
	dispatch := flag.String("dispatch", "", "the Go file for the functions that choose a micro-kernel")
	flag.Parse()
	var choices bytes.Buffer
	ConstraintExpr("!purego")
	for _, size := range []int{4, 8} {
		var t target
		switch *level {
		case "avx512":
			t = target{level: "AVX512", bytes: 64, rows: 14, size: size}
		case "avx2":
			t = target{level: "AVX2", bytes: 32, rows: 6, size: size}
		default:
			log.Fatalf("-level is %q: want avx512 or avx2", *level)
		}
		t.tiles()
		t.choose(&choices)
		t.transpose()
		t.copyRows()
		t.finish()
		t.vectorProducts()
	}
	if err := os.WriteFile(*dispatch, []byte(choicesHead+choices.String()), 0o644); err != nil {
		log.Fatal(err)
	}
	Generate()
}

func (t target) wide() bool { return t.bytes == 64 }

// lanes returns the number of elements of a register.
func (t target) lanes() int { return t.bytes / t.size }

func (t target) element() string {
	if t.size == 4 {
		return "Float32"
	}
	return "Float64"
}

// register returns a new vector register.
func (t target) register() reg.VecVirtual {
	if t.wide() {
		return ZMM()
	}
	return YMM()
}

func (t target) registers(n int) []reg.VecVirtual {
	all := make([]reg.VecVirtual, n)
	for i := range all {
		all[i] = t.register()
	}
	return all
}

// The instructions for this element type.

func (t target) zero(r reg.VecVirtual) {
	switch {
	case t.wide():
		VPXORQ(r, r, r)
	default:
		VXORPS(r, r, r)
	}
}

func (t target) load(from Op, to Op) {
	if t.size == 4 {
		VMOVUPS(from, to)
	} else {
		VMOVUPD(from, to)
	}
}

func (t target) broadcast(from Op, to Op) {
	if t.size == 4 {
		VBROADCASTSS(from, to)
	} else {
		VBROADCASTSD(from, to)
	}
}

// fma adds a*b to sum.
func (t target) fma(a, b, sum Op) {
	if t.size == 4 {
		VFMADD231PS(a, b, sum)
	} else {
		VFMADD231PD(a, b, sum)
	}
}

func (t target) add(a, b, to Op) {
	if t.size == 4 {
		VADDPS(a, b, to)
	} else {
		VADDPD(a, b, to)
	}
}

// max sets the result to b if either is NaN, or if both are zeros.
func (t target) max(a, b, to Op) {
	// In Go's order of operands, Intel's second source comes first.
	if t.size == 4 {
		VMAXPS(b, a, to)
	} else {
		VMAXPD(b, a, to)
	}
}
