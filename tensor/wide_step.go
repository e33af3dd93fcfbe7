package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// The steps of optimisers update float32 parameters from bfloat16 gradients: of one parameter at a time, so that one gradient at a time is widened.

func (w *wideKernels) sgd(all []sgdUpdate) error {
	return widenEach(w, "sgd", all, w.kernels.sgd, func(u *sgdUpdate) updated { return updated{&u.g, &u.p, &u.buf} })
}

func (w *wideKernels) adam(all []adamUpdate) error {
	return widenEach(w, "adam", all, w.kernels.adam, func(u *adamUpdate) updated { return updated{&u.g, &u.p, &u.m, &u.v, &u.greatest} })
}

func (w *wideKernels) rmsprop(all []rmspropUpdate) error {
	return widenEach(w, "rmsprop", all, w.kernels.rmsprop, func(u *rmspropUpdate) updated { return updated{&u.g, &u.p, &u.v, &u.mean, &u.buf} })
}

func (w *wideKernels) adagrad(all []adagradUpdate) error {
	return widenEach(w, "adagrad", all, w.kernels.adagrad, func(u *adagradUpdate) updated { return updated{&u.g, &u.p, &u.sum} })
}

// updated are the tensors of an update, the gradient first, nil after the last: an array, so that asking costs the heap nothing.
type updated [5]**Tensor

// widenEach runs updates: those without bfloat16 among them together, the others one by one.
func widenEach[U any](w *wideKernels, operation string, all []U, run func([]U) error, tensors func(*U) updated) error {
	from := 0 // of those without
	for i := range all {
		if !w.anyWidens(operation, tensors(&all[i])) {
			continue
		}
		if err := runSome(run, all[from:i]); err != nil {
			return err
		}
		from = i + 1
		u, d := []U{all[i]}, w.widen()
		for k, t := range tensors(&u[0]) {
			switch {
			case t == nil:
			case k == 0:
				*t = d.in(*t)
			default:
				*t = d.both(*t)
			}
		}
		if err := d.run(func() error { return run(u) }); err != nil {
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

// anyWidens asks for a gradient of bfloat16 apart: a device may do such of float32 parameters alone.
func (w *wideKernels) anyWidens(operation string, ts updated) bool {
	for i, t := range ts {
		if t == nil || *t == nil || (*t).dtype != BFloat16 {
			continue
		}
		of := operation
		if i == 0 {
			of += "Grad"
		}
		if w.widens(of, *t) {
			return true
		}
	}
	return false
}

func (w *wideKernels) norm(total *Tensor, ts []*Tensor, n kernel.Norm, parts *Tensor) error {
	if w.widens("norm", ts...) {
		d := w.widen()
		wide := make([]*Tensor, len(ts))
		for i, t := range ts {
			wide[i] = d.in(t)
		}
		return d.run(func() error { return w.kernels.norm(total, wide, n, parts) })
	}
	return w.kernels.norm(total, ts, n, parts)
}

func (w *wideKernels) clip(ts []*Tensor, parts *Tensor, most float64) error {
	return w.inPlace("clip", ts, func(ts []*Tensor) error { return w.kernels.clip(ts, parts, most) })
}

func (w *wideKernels) bound(ts []*Tensor, most float64) error {
	return w.inPlace("bound", ts, func(ts []*Tensor) error { return w.kernels.bound(ts, most) })
}

// inPlace changes tensors in place, those of bfloat16 one by one.
func (w *wideKernels) inPlace(operation string, ts []*Tensor, run func([]*Tensor) error) error {
	return widenEach(w, operation, ts, run, func(t **Tensor) updated { return updated{1: t} })
}
