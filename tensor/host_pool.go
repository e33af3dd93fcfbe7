package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) maxPool(p *kernel.Pool, y, indices, x *Tensor) error {
	l := &launch{h: h, name: "max pool"}
	if y.dtype == Float32 {
		return maxPool[float32](l, p, y, indices, x)
	}
	return maxPool[float64](l, p, y, indices, x)
}

func maxPool[T kernel.Float](l *launch, p *kernel.Pool, y, indices, x *Tensor) error {
	in, out, at := read[T](l, x), write[T](l, y), write[int32](l, indices)
	return l.run(func() { kernel.MaxPool(p, out, at, in) })
}

func (h *hostKernels) maxPoolGrad(p *kernel.Pool, dx, dy, indices *Tensor) error {
	l := &launch{h: h, name: "max pool grad"}
	if dx.dtype == Float32 {
		return maxPoolGrad[float32](l, p, dx, dy, indices)
	}
	return maxPoolGrad[float64](l, p, dx, dy, indices)
}

func maxPoolGrad[T kernel.Float](l *launch, p *kernel.Pool, dx, dy, indices *Tensor) error {
	g, at, out := read[T](l, dy), read[int32](l, indices), write[T](l, dx)
	return l.run(func() { kernel.MaxPoolGrad(p, out, g, at) })
}

func (h *hostKernels) avgPool(p *kernel.Pool, y, x *Tensor) error {
	l := &launch{h: h, name: "avg pool"}
	if y.dtype == Float32 {
		return pool(l, kernel.AvgPool[float32], p, y, x)
	}
	return pool(l, kernel.AvgPool[float64], p, y, x)
}

func (h *hostKernels) avgPoolGrad(p *kernel.Pool, dx, dy *Tensor) error {
	l := &launch{h: h, name: "avg pool grad"}
	if dx.dtype == Float32 {
		return pool(l, kernel.AvgPoolGrad[float32], p, dx, dy)
	}
	return pool(l, kernel.AvgPoolGrad[float64], p, dx, dy)
}

func pool[T kernel.Float](l *launch, f func(p *kernel.Pool, out, in []T), p *kernel.Pool, out, in *Tensor) error {
	from, to := read[T](l, in), write[T](l, out)
	return l.run(func() { f(p, to, from) })
}
