package tensor

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// badBits is what stands for an element that is not there: NaN, or 0 in whole numbers.
func badBits(dtype Dtype) uint64 {
	switch dtype {
	case Float32:
		return uint64(math.Float32bits(float32(math.NaN())))
	case Float64:
		return math.Float64bits(math.NaN())
	case BFloat16:
		return uint64(ToBF16(float32(math.NaN())))
	}
	return 0
}

func (h *hostKernels) take(dst, x, index *Tensor, t kernel.Take, fault *storage) error {
	l := &launch{h: h, name: "take"}
	if index.dtype == Int32 {
		return takeBy[int32](l, dst, x, index, t, fault)
	}
	return takeBy[int64](l, dst, x, index, t, fault)
}

func takeBy[I kernel.Index](l *launch, dst, x, index *Tensor, t kernel.Take, fault *storage) error {
	switch dst.dtype.Size() {
	case 1:
		return take[uint8, I](l, dst, x, index, t, fault)
	case 2:
		return take[uint16, I](l, dst, x, index, t, fault)
	case 4:
		return take[uint32, I](l, dst, x, index, t, fault)
	default:
		return take[uint64, I](l, dst, x, index, t, fault)
	}
}

func take[E uint8 | uint16 | uint32 | uint64, I kernel.Index](l *launch, dst, x, index *Tensor, t kernel.Take, fault *storage) error {
	in, at, out, word := read[E](l, x), read[I](l, index), write[E](l, dst), l.faultOf(fault)
	bad := E(badBits(dst.dtype))
	return l.run(func() { kernel.TakeRows(out, in, at, t, bad, word) })
}

func (h *hostKernels) sortIndex(order, _, index *Tensor, rows, skip int) error {
	l := &launch{h: h, name: "sort index"}
	if index.dtype == Int32 {
		return sortIndex[int32](l, order, index, rows, skip)
	}
	return sortIndex[int64](l, order, index, rows, skip)
}

func sortIndex[I kernel.Index](l *launch, order, index *Tensor, rows, skip int) error {
	at, out := read[I](l, index), write[uint64](l, order)
	return l.run(func() { kernel.SortIndex(out, at, rows, skip) })
}

func (h *hostKernels) takeGrad(dst, dy, order *Tensor, t kernel.Take, mean bool) error {
	l := &launch{h: h, name: "take grad"}
	if dst.dtype == Float32 {
		return takeGrad[float32](l, dst, dy, order, t, mean)
	}
	return takeGrad[float64](l, dst, dy, order, t, mean)
}

func (h *hostKernels) scanGrad(*Tensor, *Tensor, *Tensor, kernel.Take, int, bool, bool) (bool, error) {
	return false, nil
}

func takeGrad[T kernel.Float](l *launch, dst, dy, order *Tensor, t kernel.Take, mean bool) error {
	g, sorted, out := read[T](l, dy), read[uint64](l, order), write[T](l, dst)
	return l.run(func() { kernel.TakeRowsGrad(out, g, sorted, t, mean) })
}

func (h *hostKernels) gather(dst, x, index *Tensor, g *kernel.Gather, fault *storage) error {
	l := &launch{h: h, name: "gather"}
	if index.dtype == Int32 {
		return gatherBy[int32](l, dst, x, index, g, fault)
	}
	return gatherBy[int64](l, dst, x, index, g, fault)
}

func gatherBy[I kernel.Index](l *launch, dst, x, index *Tensor, g *kernel.Gather, fault *storage) error {
	switch dst.dtype.Size() {
	case 1:
		return gather[uint8, I](l, dst, x, index, g, fault)
	case 2:
		return gather[uint16, I](l, dst, x, index, g, fault)
	case 4:
		return gather[uint32, I](l, dst, x, index, g, fault)
	default:
		return gather[uint64, I](l, dst, x, index, g, fault)
	}
}

func gather[E uint8 | uint16 | uint32 | uint64, I kernel.Index](l *launch, dst, x, index *Tensor, g *kernel.Gather, fault *storage) error {
	in, at, out, word := read[E](l, x), read[I](l, index), write[E](l, dst), l.faultOf(fault)
	bad := E(badBits(dst.dtype))
	return l.run(func() { kernel.GatherElements(out, in, at, g, bad, word) })
}

func (h *hostKernels) gatherGrad(dst, dy, index *Tensor, g *kernel.Gather) error {
	l := &launch{h: h, name: "gather grad"}
	switch {
	case dst.dtype == Float32 && index.dtype == Int32:
		return gatherGrad[float32, int32](l, dst, dy, index, g)
	case dst.dtype == Float32:
		return gatherGrad[float32, int64](l, dst, dy, index, g)
	case index.dtype == Int32:
		return gatherGrad[float64, int32](l, dst, dy, index, g)
	}
	return gatherGrad[float64, int64](l, dst, dy, index, g)
}

func gatherGrad[T kernel.Float, I kernel.Index](l *launch, dst, dy, index *Tensor, g *kernel.Gather) error {
	d, at, out := read[T](l, dy), read[I](l, index), update[T](l, dst)
	return l.run(func() { kernel.GatherGrad(out, d, at, g) })
}
