package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// The steps of optimisers update float32 parameters from bfloat16 gradients: of one parameter at a time, so that one gradient at a time is widened.

func (w *wideKernels) sgd(all []sgdUpdate) error {
	return widenEach(w, "sgd", all, w.kernels.sgd, func(u *sgdUpdate) []**Tensor { return []**Tensor{&u.g, &u.p, &u.buf} })
}

func (w *wideKernels) adam(all []adamUpdate) error {
	return widenEach(w, "adam", all, w.kernels.adam, func(u *adamUpdate) []**Tensor { return []**Tensor{&u.g, &u.p, &u.m, &u.v, &u.greatest} })
}

func (w *wideKernels) rmsprop(all []rmspropUpdate) error {
	return widenEach(w, "rmsprop", all, w.kernels.rmsprop, func(u *rmspropUpdate) []**Tensor { return []**Tensor{&u.g, &u.p, &u.v, &u.mean, &u.buf} })
}

func (w *wideKernels) adagrad(all []adagradUpdate) error {
	return widenEach(w, "adagrad", all, w.kernels.adagrad, func(u *adagradUpdate) []**Tensor { return []**Tensor{&u.g, &u.p, &u.sum} })
}

// widenEach runs updates: those without bfloat16 among them together, the others one by one. operands are an update's, the gradient first.
func widenEach[U any](w *wideKernels, operation string, all []U, run func([]U) error, operands func(*U) []**Tensor) error {
	from := 0 // of those without
	for i := range all {
		u := all[i]
		if !w.anyWidens(operation, operands(&u)) {
			continue
		}
		if err := runSome(run, all[from:i]); err != nil {
			return err
		}
		from = i + 1
		d := w.widen()
		for k, t := range operands(&u) {
			if k == 0 {
				*t = d.in(*t)
			} else {
				*t = d.both(*t)
			}
		}
		if err := d.run(func() error { return run([]U{u}) }); err != nil {
			return err
		}
	}
	return runSome(run, all[from:])
}

func runSome[U any](run func([]U) error, some []U) error {
	if len(some) == 0 {
		return nil
	}
	return run(some)
}

func (w *wideKernels) anyWidens(operation string, ts []**Tensor) bool {
	for _, t := range ts {
		if w.widens(operation, *t) {
			return true
		}
	}
	return false
}

func (w *wideKernels) norm(total *Tensor, ts []*Tensor, n kernel.Norm, parts *Tensor) error {
	if !w.widens("norm", ts...) {
		return w.kernels.norm(total, ts, n, parts)
	}
	d := w.widen()
	wide := make([]*Tensor, len(ts))
	for i, t := range ts {
		wide[i] = d.in(t)
	}
	return d.run(func() error { return w.kernels.norm(total, wide, n, parts) })
}

func (w *wideKernels) clip(ts []*Tensor, parts *Tensor, most float64) error {
	return w.inPlace("clip", ts, func(ts []*Tensor) error { return w.kernels.clip(ts, parts, most) })
}

func (w *wideKernels) bound(ts []*Tensor, most float64) error {
	return w.inPlace("bound", ts, func(ts []*Tensor) error { return w.kernels.bound(ts, most) })
}

// inPlace changes tensors in place, those of bfloat16 one by one.
func (w *wideKernels) inPlace(operation string, ts []*Tensor, run func([]*Tensor) error) error {
	var none *Tensor // in the place of a gradient
	return widenEach(w, operation, ts, run, func(t **Tensor) []**Tensor { return []**Tensor{&none, t} })
}
