package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// Factor is a factor of a product: op(A), with a row per item, or op(B), with a column per item.
// Element k of an item is Data[item*Item + k*K].
type Factor[T Float] struct {
	Data    []T
	Item, K int // strides
}

// pack fills a panel.
func (f *Factor[T]) pack(m *machine, dst []T, stride, k, depth, item, items int) {
	src := f.Data[item*f.Item+k*f.K:]
	_ = src[(items-1)*f.Item+(depth-1)*f.K]
	_ = dst[(depth-1)*stride+items-1]
	Panel(m.level, dst, stride, src, f.Item, f.K, depth, items)
}

// packAll fills panels of m.columns items each.
func (f *Factor[T]) packAll(m *machine, dst []T, k, depth, item, items int) {
	for j := 0; j < items; j += m.columns {
		f.pack(m, dst[j*depth:], m.columns, k, depth, item+j, min(m.columns, items-j))
	}
}

// Panel sets dst[i*stride + j] to src[j*item + i*k], for i below depth and j below items. If item
// or k is 1 it may use the vector instructions of level.
func Panel[T Float](level simd.Level, dst []T, stride int, src []T, item, k, depth, items int) {
	if level != simd.Generic && panelAssembly(level, dst, stride, src, item, k, depth, items) {
		return
	}
	if item == 1 {
		for i := range depth {
			copy(dst[i*stride:][:items], src[i*k:])
		}
		return
	}
	for j := range items {
		for i := range depth {
			dst[i*stride+j] = src[j*item+i*k]
		}
	}
}
