package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) reduce(s kernel.Statistic, dst *Tensor, kept Shape, x *Tensor, c float64) error {
	l := &launch{h: h, name: s.Name()}
	if dst.dtype == Float32 {
		return reduce[float32](l, s, dst, kept, x, c)
	}
	return reduce[float64](l, s, dst, kept, x, c)
}

func reduce[T kernel.Float](l *launch, s kernel.Statistic, dst *Tensor, kept Shape, x *Tensor, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := l.h.rt.reduction(x.shape, kept)
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Reduce(s, out, in, c, plan) })
}

func (h *hostKernels) reduceGrad(s kernel.Statistic, dst, dy, x, y *Tensor, kept Shape, c float64) error {
	l := &launch{h: h, name: s.Name() + " grad"}
	if dst.dtype == Float32 {
		return reduceGrad[float32](l, s, dst, dy, x, y, kept, c)
	}
	return reduceGrad[float64](l, s, dst, dy, x, y, kept, c)
}

func reduceGrad[T kernel.Float](l *launch, s kernel.Statistic, dst, dy, x, y *Tensor, kept Shape, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := l.h.rt.reduction(x.shape, kept)
	g, in, of, out := read[T](l, dy), read[T](l, x), readOr[T](l, y), write[T](l, dst)
	return l.run(func() { kernel.ReduceGrad(s, out, g, in, of, c, plan) })
}
