package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Float is the constraint of the element types.
type Float interface{ float32 | float64 }

// machine describes the kernels of a level and an element type.
type machine struct {
	level   simd.Level
	size    int // of an element
	rows    int // of the largest tile
	columns int // of a tile: of two vector registers
	// depth is that of a block of the inner dimension: panels of A that deep stay in the
	// first-level cache.
	depth int
	grain int // multiply-adds that are worth a worker, about 15 µs
}

var machines = [...][2]machine{
	simd.Generic: {{simd.Generic, 4, 4, 4, 256, 1 << 15}, {simd.Generic, 8, 4, 4, 256, 1 << 15}},
	simd.NEON:    {{simd.NEON, 4, 8, 12, 256, 1 << 18}, {simd.NEON, 8, 8, 6, 256, 1 << 17}},
	simd.AVX2:    {{simd.AVX2, 4, 6, 16, 384, 1 << 19}, {simd.AVX2, 8, 6, 8, 256, 1 << 18}},
	simd.AVX512:  {{simd.AVX512, 4, 14, 32, 384, 1 << 20}, {simd.AVX512, 8, 14, 16, 256, 1 << 19}},
}

// machineOf returns the machine of the active level.
func machineOf[T Float]() *machine {
	var v T
	return &machines[simd.Active()][unsafe.Sizeof(v)/8]
}

// masks reports whether tiles with fewer columns neither read nor write beyond them. If so, a
// factor can be multiplied in place.
func (m *machine) masks() bool { return m.level != simd.NEON }

// at returns the element at an offset from p.
func at[T Float](p *T, offset int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), offset*int(unsafe.Sizeof(*p))))
}
