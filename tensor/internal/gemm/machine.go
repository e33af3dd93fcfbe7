package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Float are the element types.
type Float interface{ float32 | float64 }

// machine is what the kernels of a level and an element type are made for.
type machine struct {
	level   simd.Level
	size    int // of an element
	rows    int // most of a tile
	columns int // of a tile: of two vector registers
	depth   int // of a block of the inner dimension: panels of A that deep stay in the first cache
	grain   int // multiply-adds that are worth a worker: some 15 µs
}

var machines = [...][2]machine{
	simd.Generic: {{simd.Generic, 4, 4, 4, 256, 1 << 15}, {simd.Generic, 8, 4, 4, 256, 1 << 15}},
	simd.NEON:    {{simd.NEON, 4, 8, 12, 256, 1 << 18}, {simd.NEON, 8, 8, 6, 256, 1 << 17}},
	simd.AVX2:    {{simd.AVX2, 4, 6, 16, 384, 1 << 19}, {simd.AVX2, 8, 6, 8, 256, 1 << 18}},
	simd.AVX512:  {{simd.AVX512, 4, 14, 32, 384, 1 << 20}, {simd.AVX512, 8, 14, 16, 256, 1 << 19}},
}

// machineOf is the one that is active.
func machineOf[T Float]() *machine {
	var v T
	return &machines[simd.Active()][unsafe.Sizeof(v)/8]
}

// masks: tiles with fewer columns neither read nor write beyond them, so that a factor can be multiplied where it lies.
func (m *machine) masks() bool { return m.level != simd.NEON }

// at is the element so many behind p.
func at[T Float](p *T, offset int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), offset*int(unsafe.Sizeof(*p))))
}
