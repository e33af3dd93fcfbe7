package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) dropout(dst, x *Tensor, r kernel.Random, live *Tensor, below uint64, scale float64) error {
	l := &launch{h: h, name: "dropout"}
	if dst.dtype == Float32 {
		return dropout[float32](l, dst, x, r, live, below, scale)
	}
	return dropout[float64](l, dst, x, r, live, below, scale)
}

func dropout[T kernel.Float](l *launch, dst, x *Tensor, r kernel.Random, live *Tensor, below uint64, scale float64) error {
	in, out := read[T](l, x), write[T](l, dst)
	if live != nil {
		seed := read[uint64](l, live)
		return l.run(func() { kernel.Dropout(out, in, kernel.Random{Seed: seed[0], Stream: r.Stream}, below, scale) })
	}
	return l.run(func() { kernel.Dropout(out, in, r, below, scale) })
}
