package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) convert(dst, x *Tensor) error {
	l := &launch{h: h, name: "convert"}
	switch x.dtype {
	case BFloat16:
		return widen(l, dst, x)
	case Float32:
		return convert[float32](l, dst, x)
	case Float64:
		return convert[float64](l, dst, x)
	case Int32:
		return convert[int32](l, dst, x)
	case Int64:
		return convert[int64](l, dst, x)
	default:
		return convert[uint8](l, dst, x)
	}
}

// goNumber are elements that are numbers of Go.
type goNumber interface {
	float32 | float64 | int32 | int64 | uint8
}

func convert[S goNumber](l *launch, dst, x *Tensor) error {
	switch dst.dtype {
	case Float32:
		return convertTo[float32, S](l, dst, x)
	case BFloat16:
		return narrow[S](l, dst, x)
	}
	return convertTo[float64, S](l, dst, x)
}

func narrow[S goNumber](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[S](l, x), write[BF16](l, dst)
	return l.run(func() { kernel.Narrow(out, in) })
}

func widen(l *launch, dst, x *Tensor) error {
	switch dst.dtype {
	case Float32:
		return widenTo[float32](l, dst, x)
	case Float64:
		return widenTo[float64](l, dst, x)
	}
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[BF16](l, x), write[BF16](l, dst)
	return l.run(func() { copy(out, in) })
}

func widenTo[D kernel.Float](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[BF16](l, x), write[D](l, dst)
	return l.run(func() { kernel.Widen(out, in) })
}

func convertTo[D kernel.Float, S goNumber](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[S](l, x), write[D](l, dst)
	return l.run(func() { kernel.Convert(out, in) })
}
