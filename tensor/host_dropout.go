package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) dropout(dst, x *Tensor, r kernel.Random, below uint64, scale float64) error {
	l := &launch{h: h, name: "dropout"}
	if dst.dtype == Float32 {
		return dropout[float32](l, dst, x, r, below, scale)
	}
	return dropout[float64](l, dst, x, r, below, scale)
}

func dropout[T kernel.Float](l *launch, dst, x *Tensor, r kernel.Random, below uint64, scale float64) error {
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Dropout(out, in, r, below, scale) })
}
