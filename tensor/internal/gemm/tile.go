package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// tile sets rows x columns elements of c to the product of a and b over k > 0, or adds it. The rows
// of c are crs elements apart, those of a ars elements, the columns of a aks elements and the rows
// of b bks elements.
func tile[T Float](m *machine, rows, columns int, c *T, crs int, a *T, ars, aks int, b *T, bks, k int, add bool) {
	if m.level != simd.Generic {
		size := uintptr(m.size)
		adding := uintptr(0)
		if add {
			adding = 1
		}
		tileAssembly(m, rows, columns, bytes(c), uintptr(crs)*size, bytes(a), uintptr(ars)*size, uintptr(aks)*size, bytes(b), uintptr(bks)*size, uintptr(k), adding)
		return
	}
	if rows == 4 && columns == 4 {
		tileGeneric4x4(c, crs, a, ars, aks, b, bks, k, add)
		return
	}
	for i := range rows {
		for j := range columns {
			x, y := at(a, i*ars), at(b, j)
			var sum T
			for range k - 1 {
				sum += *x * *y
				x, y = at(x, aks), at(y, bks)
			}
			sum += *x * *y
			setOrAdd(at(c, i*crs+j), sum, add)
		}
	}
}

func setOrAdd[T Float](c *T, sum T, add bool) {
	if add {
		sum += *c
	}
	*c = sum
}

// tileGeneric4x4 keeps its sums in variables.
func tileGeneric4x4[T Float](c *T, crs int, a *T, ars, aks int, b *T, bks, k int, add bool) {
	for i := 0; i < 4; i += 2 {
		var c00, c01, c02, c03, c10, c11, c12, c13 T
		for l := range k {
			first, row := at(a, i*ars+l*aks), (*[4]T)(unsafe.Pointer(at(b, l*bks)))
			a0, a1 := *first, *at(first, ars)
			b0, b1, b2, b3 := row[0], row[1], row[2], row[3]
			c00 += a0 * b0
			c01 += a0 * b1
			c02 += a0 * b2
			c03 += a0 * b3
			c10 += a1 * b0
			c11 += a1 * b1
			c12 += a1 * b2
			c13 += a1 * b3
		}
		for j, sum := range [8]T{c00, c01, c02, c03, c10, c11, c12, c13} {
			setOrAdd(at(c, (i+j/4)*crs+j%4), sum, add)
		}
	}
}

func bytes[T Float](p *T) *byte { return (*byte)(unsafe.Pointer(p)) }
