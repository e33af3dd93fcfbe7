//go:build !purego

package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// tileAssembly is tile for a level with assembly; strides are in bytes.
func tileAssembly(m *machine, rows, columns int, c *byte, crs uintptr, a *byte, ars, aks uintptr, b *byte, bks, k, add uintptr) {
	kind := rows
	switch {
	case columns == m.columns:
	case columns > m.columns/2:
		kind += 16
	default:
		kind += 32
	}
	switch {
	case m.level == simd.AVX512 && m.size == 4:
		tileFloat32AVX512(kind, c, crs, a, ars, aks, b, bks, k, add, uintptr(columns))
	case m.level == simd.AVX512:
		tileFloat64AVX512(kind, c, crs, a, ars, aks, b, bks, k, add, uintptr(columns))
	case m.size == 4:
		tileFloat32AVX2(kind, c, crs, a, ars, aks, b, bks, k, add, uintptr(columns))
	default:
		tileFloat64AVX2(kind, c, crs, a, ars, aks, b, bks, k, add, uintptr(columns))
	}
}

// panelDepth is the depth that one call of assembly packs. It is bounded because assembly can't be
// preempted.
const panelDepth = 1 << 10

// panelAssembly is Panel for a level with assembly. It returns false for strides without assembly.
func panelAssembly[T Float](level simd.Level, dst []T, stride int, src []T, item, k, depth, items int) bool {
	if item != 1 && k != 1 {
		return false
	}
	var v T
	size := int(unsafe.Sizeof(v))
	width := 64 / size
	if level == simd.AVX2 {
		width = 32 / size
	}
	if item == 1 {
		width *= 2
	}
	for i := 0; i < depth; i += panelDepth {
		for j := 0; j < items; j += width {
			to, from := bytes(&dst[i*stride+j]), bytes(&src[j*item+i*k])
			dks, n, columns := uintptr(stride*size), uintptr(min(panelDepth, depth-i)), uintptr(min(width, items-j))
			if item == 1 {
				copyRows(level, size, to, dks, from, uintptr(k*size), n, columns)
			} else {
				transpose(level, size, to, dks, from, uintptr(item*size), n, columns)
			}
		}
	}
	return true
}

func copyRows(level simd.Level, size int, dst *byte, dks uintptr, src *byte, sks, k, columns uintptr) {
	switch {
	case level == simd.AVX512 && size == 4:
		copyRowsFloat32AVX512(dst, dks, src, sks, k, columns)
	case level == simd.AVX512:
		copyRowsFloat64AVX512(dst, dks, src, sks, k, columns)
	case size == 4:
		copyRowsFloat32AVX2(dst, dks, src, sks, k, columns)
	default:
		copyRowsFloat64AVX2(dst, dks, src, sks, k, columns)
	}
}

func transpose(level simd.Level, size int, dst *byte, dks uintptr, src *byte, srs, k, columns uintptr) {
	switch {
	case level == simd.AVX512 && size == 4:
		transposeFloat32AVX512(dst, dks, src, srs, k, columns)
	case level == simd.AVX512:
		transposeFloat64AVX512(dst, dks, src, srs, k, columns)
	case size == 4:
		transposeFloat32AVX2(dst, dks, src, srs, k, columns)
	default:
		transposeFloat64AVX2(dst, dks, src, srs, k, columns)
	}
}
