//go:build !purego

package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// tileAssembly is tile for a level with assembly; strides are in bytes. A tile with fewer columns
// is computed in a buffer, because the assembly always computes all columns. The other columns of B
// can be read, because they belong to a packed panel.
func tileAssembly(m *machine, rows, columns int, c *byte, crs uintptr, a *byte, ars, aks uintptr, b *byte, bks, k, add uintptr) {
	if columns == m.columns {
		fullTile(m, rows, c, crs, a, ars, aks, b, bks, k, add)
		return
	}
	if m.size == 4 {
		edgeTile[float32](m, rows, columns, c, crs, a, ars, aks, b, bks, k, add)
	} else {
		edgeTile[float64](m, rows, columns, c, crs, a, ars, aks, b, bks, k, add)
	}
}

func edgeTile[T Float](m *machine, rows, columns int, c *byte, crs uintptr, a *byte, ars, aks uintptr, b *byte, bks, k, add uintptr) {
	var sums [8 * 12]T
	fullTile(m, rows, bytes(&sums[0]), uintptr(m.columns*m.size), a, ars, aks, b, bks, k, 0)
	for i := range rows {
		row := unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(c), uintptr(i)*crs)), columns)
		for j, sum := range sums[i*m.columns:][:columns] {
			if add > 0 {
				sum += row[j]
			}
			row[j] = sum
		}
	}
}

func fullTile(m *machine, rows int, c *byte, crs uintptr, a *byte, ars, aks uintptr, b *byte, bks, k, add uintptr) {
	if m.size == 4 {
		tileFloat32NEON(rows, c, crs, a, ars, aks, b, bks, k, add)
	} else {
		tileFloat64NEON(rows, c, crs, a, ars, aks, b, bks, k, add)
	}
}

// panelDepth is the depth that one call of assembly packs. It is bounded because assembly can't be
// preempted.
const panelDepth = 1 << 10

func transpose[T Float](size int, dst *T, stride int, src *T, item, k int) {
	if size == 4 {
		transposeFloat32NEON(bytes(dst), uintptr(stride*size), bytes(src), uintptr(item*size), uintptr(k))
	} else {
		transposeFloat64NEON(bytes(dst), uintptr(stride*size), bytes(src), uintptr(item*size), uintptr(k))
	}
}

// panelAssembly is Panel for a factor that has to be transposed; it returns false for others.
// Columns that do not fill a vector are packed in Go.
func panelAssembly[T Float](_ simd.Level, dst []T, stride int, src []T, item, k, depth, items int) bool {
	var v T
	size := int(unsafe.Sizeof(v))
	lanes := 16 / size
	if k != 1 || item == 1 {
		return false
	}
	whole := 0
	if depth >= lanes {
		whole = items / lanes * lanes
	}
	for j := 0; j < whole; j += lanes {
		even := depth / lanes * lanes
		for i := 0; i < even; i += panelDepth {
			transpose(size, &dst[i*stride+j], stride, &src[j*item+i], item, min(panelDepth, even-i))
		}
		// The last call overlaps the one before it.
		if even < depth {
			i := depth - lanes
			transpose(size, &dst[i*stride+j], stride, &src[j*item+i], item, lanes)
		}
	}
	for j := whole; j < items; j++ {
		for i := range depth {
			dst[i*stride+j] = src[j*item+i]
		}
	}
	return true
}
