package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) sgd(all []sgdUpdate) error {
	for _, u := range all {
		l, step := &launch{h: h, name: "sgd step"}, sgd[float64]
		if u.p.dtype == Float32 {
			step = sgd[float32]
		}
		if err := step(l, &u); err != nil {
			return err
		}
	}
	return nil
}

func sgd[T kernel.Float](l *launch, u *sgdUpdate) error {
	if u.p.bytes == 0 {
		return nil
	}
	s, w, d, b := kernel.SGD(u.SGDStep), update[T](l, u.p), read[T](l, u.g), updateOr[T](l, u.buf)
	if live := l.row(u.live, sgdRow); live != nil {
		return l.run(func() {
			s := s
			s.LR, s.Momentum, s.First = live[0], live[1], live[2] != 0
			kernel.StepSGD(s, w, d, b)
		})
	}
	return l.run(func() { kernel.StepSGD(s, w, d, b) })
}

// row is the numbers of a step that is captured, or nil.
func (l *launch) row(r liveRow, width int) []float64 {
	if r.numbers == nil {
		return nil
	}
	memory := r.rows(1, width)
	l.readRange(memory)
	return elementsOf[float64](l.memory(memory))
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
		return adam[float32](l, u)
	}
	return adam[float64](l, u)
}

func adam[T kernel.Float](l *launch, u *adamUpdate) error {
	if u.p.bytes == 0 {
		return nil
	}
	s, w, d, m1, m2, top := u.Adam, update[T](l, u.p), read[T](l, u.g), update[T](l, u.m), update[T](l, u.v), updateOr[T](l, u.greatest)
	if live := l.row(u.live, adamRow); live != nil {
		return l.run(func() {
			s := s
			s.LR, s.Beta1, s.StepSize, s.Correction = live[0], live[1], live[2], live[3]
			kernel.StepAdam(s, w, d, m1, m2, top)
		})
	}
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
	if live := l.row(u.live, rmspropRow); live != nil {
		return l.run(func() {
			s := s
			s.LR, s.Momentum = live[0], live[1]
			kernel.StepRMSprop(s, p, g, v, mean, buf)
		})
	}
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
	if live := l.row(u.live, adagradRow); live != nil {
		return l.run(func() {
			s := s
			s.Rate = live[0]
			kernel.StepAdagrad(s, p, g, sum)
		})
	}
	return l.run(func() { kernel.StepAdagrad(s, p, g, sum) })
}
