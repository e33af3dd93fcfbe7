//go:build !purego

package gemm

import (
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// finishAssembly applies a Finish to rows, at a level with assembly.
func finishAssembly[T Float](level simd.Level, c []T, crs, rows, columns int, rowBias, columnBias []T, relu bool) bool {
	size := uintptr(unsafe.Sizeof(c[0]))
	at, from, beside := bytes(&c[0]), bytes(unsafe.SliceData(rowBias)), bytes(unsafe.SliceData(columnBias))
	n, m, between, negative := uintptr(rows), uintptr(columns), uintptr(crs)*size, flag(relu)
	switch {
	case level == simd.AVX512 && size == 4:
		finishFloat32AVX512(at, between, n, m, from, beside, negative)
	case level == simd.AVX512:
		finishFloat64AVX512(at, between, n, m, from, beside, negative)
	case size == 4:
		finishFloat32AVX2(at, between, n, m, from, beside, negative)
	default:
		finishFloat64AVX2(at, between, n, m, from, beside, negative)
	}
	return true
}

// dotsAssembly sets rows of dst to the products of x's rows and v, or adds them. Strides are in
// elements.
func dotsAssembly(level simd.Level, size int, dst *byte, dstStride int, x *byte, xrs, rows int, v *byte, k int, add bool) {
	to, between, n, depth, adding := uintptr(dstStride*size), uintptr(xrs*size), uintptr(rows), uintptr(k), flag(add)
	switch {
	case level == simd.AVX512 && size == 4:
		dotsFloat32AVX512(dst, to, x, between, n, v, depth, adding)
	case level == simd.AVX512:
		dotsFloat64AVX512(dst, to, x, between, n, v, depth, adding)
	case size == 4:
		dotsFloat32AVX2(dst, to, x, between, n, v, depth, adding)
	default:
		dotsFloat64AVX2(dst, to, x, between, n, v, depth, adding)
	}
}

// addRowsAssembly adds rows of x, times factors, to c. Strides are in elements.
func addRowsAssembly(level simd.Level, size int, c *byte, columns int, factors *byte, stride int, x *byte, xrs, rows int) {
	m, apart, between, n := uintptr(columns), uintptr(stride*size), uintptr(xrs*size), uintptr(rows)
	switch {
	case level == simd.AVX512 && size == 4:
		addRowsFloat32AVX512(c, m, factors, apart, x, between, n)
	case level == simd.AVX512:
		addRowsFloat64AVX512(c, m, factors, apart, x, between, n)
	case size == 4:
		addRowsFloat32AVX2(c, m, factors, apart, x, between, n)
	default:
		addRowsFloat64AVX2(c, m, factors, apart, x, between, n)
	}
}

func flag(b bool) uintptr {
	if b {
		return 1
	}
	return 0
}
