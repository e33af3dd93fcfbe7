package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) sgd(all []sgdUpdate) error {
	for _, u := range all {
		l, step := &launch{h: h, name: "sgd step"}, sgd[float64]
		if u.p.dtype == Float32 {
			step = sgd[float32]
		}
		if err := step(l, kernel.SGD(u.SGDStep), u.p, u.g, u.buf); err != nil {
			return err
		}
	}
	return nil
}

func sgd[T kernel.Float](l *launch, s kernel.SGD, p, g, buf *Tensor) error {
	if p.bytes == 0 {
		return nil
	}
	w, d, b := update[T](l, p), read[T](l, g), updateOr[T](l, buf)
	return l.run(func() { kernel.StepSGD(s, w, d, b) })
}

func (h *hostKernels) adam(all []adamUpdate) error {
	for i := range all {
		if err := h.adamOne(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// adamOne calls the two directly: what is called through a variable keeps its launch on the heap.
func (h *hostKernels) adamOne(u *adamUpdate) error {
	l := &launch{h: h, name: "adam step"}
	if u.p.dtype == Float32 {
		return adam[float32](l, u.Adam, u.p, u.g, u.m, u.v, u.greatest)
	}
	return adam[float64](l, u.Adam, u.p, u.g, u.m, u.v, u.greatest)
}

func adam[T kernel.Float](l *launch, s kernel.Adam, p, g, m, v, greatest *Tensor) error {
	if p.bytes == 0 {
		return nil
	}
	w, d, m1, m2, top := update[T](l, p), read[T](l, g), update[T](l, m), update[T](l, v), updateOr[T](l, greatest)
	return l.run(func() { kernel.StepAdam(s, w, d, m1, m2, top) })
}

func (h *hostKernels) rmsprop(all []rmspropUpdate) error {
	for _, u := range all {
		step := rmsprop[float64]
		if u.p.dtype == Float32 {
			step = rmsprop[float32]
		}
		if err := step(&launch{h: h, name: "rmsprop step"}, u); err != nil {
			return err
		}
	}
	return nil
}

func rmsprop[T kernel.Float](l *launch, u rmspropUpdate) error {
	if u.p.bytes == 0 {
		return nil
	}
	s, p, g, v := u.RMSprop, update[T](l, u.p), read[T](l, u.g), update[T](l, u.v)
	mean, buf := updateOr[T](l, u.mean), updateOr[T](l, u.buf)
	return l.run(func() { kernel.StepRMSprop(s, p, g, v, mean, buf) })
}

func (h *hostKernels) adagrad(all []adagradUpdate) error {
	for _, u := range all {
		step := adagrad[float64]
		if u.p.dtype == Float32 {
			step = adagrad[float32]
		}
		if err := step(&launch{h: h, name: "adagrad step"}, u); err != nil {
			return err
		}
	}
	return nil
}

func adagrad[T kernel.Float](l *launch, u adagradUpdate) error {
	if u.p.bytes == 0 {
		return nil
	}
	s, p, g, sum := u.Adagrad, update[T](l, u.p), read[T](l, u.g), update[T](l, u.sum)
	return l.run(func() { kernel.StepAdagrad(s, p, g, sum) })
}

func (h *hostKernels) convert(dst, x *Tensor) error {
	l := &launch{h: h, name: "convert"}
	switch x.dtype {
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

func convert[S Element](l *launch, dst, x *Tensor) error {
	if dst.dtype == Float32 {
		return convertTo[float32, S](l, dst, x)
	}
	return convertTo[float64, S](l, dst, x)
}

func convertTo[D kernel.Float, S Element](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[S](l, x), write[D](l, dst)
	return l.run(func() { kernel.Convert(out, in) })
}
