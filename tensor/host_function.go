package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) apply(f kernel.Function, dst, x *Tensor, c, d float64) error {
	l := &launch{h: h, name: f.Name()}
	if dst.dtype == Float32 {
		return apply[float32](l, f, dst, x, c, d)
	}
	return apply[float64](l, f, dst, x, c, d)
}

func apply[T kernel.Float](l *launch, f kernel.Function, dst, x *Tensor, c, d float64) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Apply(f, out, in, c, d) })
}

func (h *hostKernels) applyGrad(f kernel.Function, dst, dy, saved *Tensor, c, d float64) error {
	l := &launch{h: h, name: f.GradName()}
	if dst.dtype == Float32 {
		return applyGrad[float32](l, f, dst, dy, saved, c, d)
	}
	return applyGrad[float64](l, f, dst, dy, saved, c, d)
}

func applyGrad[T kernel.Float](l *launch, f kernel.Function, dst, dy, saved *Tensor, c, d float64) error {
	if dst.bytes == 0 {
		return nil
	}
	g, v, out := read[T](l, dy), read[T](l, saved), write[T](l, dst)
	return l.run(func() { kernel.ApplyGrad(f, out, g, v, c, d) })
}

func (h *hostKernels) choose(dst, cond, a, b *Tensor) error {
	l := &launch{h: h, name: "where"}
	switch cond.dtype {
	case Uint8:
		return chooseBy[uint8](l, dst, cond, a, b)
	case Int32:
		return chooseBy[int32](l, dst, cond, a, b)
	default:
		return chooseBy[int64](l, dst, cond, a, b)
	}
}

func chooseBy[C uint8 | int32 | int64](l *launch, dst, cond, a, b *Tensor) error {
	switch dst.dtype.Size() {
	case 1:
		return choose[C, uint8](l, dst, cond, a, b)
	case 2:
		return choose[C, uint16](l, dst, cond, a, b)
	case 4:
		return choose[C, uint32](l, dst, cond, a, b)
	default:
		return choose[C, uint64](l, dst, cond, a, b)
	}
}

func choose[C uint8 | int32 | int64, E uint8 | uint16 | uint32 | uint64](l *launch, dst, cond, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	mask, x, y, out := read[C](l, cond), readOr[E](l, a), readOr[E](l, b), write[E](l, dst)
	plan := choicePlan(dst, cond, a, b)
	return l.run(func() { kernel.Choose(out, mask, x, y, plan) })
}

// choicePlan takes what is missing for a scalar.
func choicePlan(dst, cond, a, b *Tensor) *kernel.Meeting {
	return kernel.NewMeeting(dst.shape, cond.shape, a.Shape(), b.Shape())
}

func (h *hostKernels) extremeGrad(greatest bool, dst, dy, a, b *Tensor) error {
	l := &launch{h: h, name: "extreme grad"}
	if dst.dtype == Float32 {
		return extremeGrad[float32](l, greatest, dst, dy, a, b)
	}
	return extremeGrad[float64](l, greatest, dst, dy, a, b)
}

func extremeGrad[T kernel.Float](l *launch, greatest bool, dst, dy, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := kernel.NewMeeting(dst.shape, a.shape, b.shape)
	g, x, y, out := read[T](l, dy), read[T](l, a), read[T](l, b), write[T](l, dst)
	return l.run(func() { kernel.ExtremeGrad(greatest, out, g, x, y, plan) })
}
