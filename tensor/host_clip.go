package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) norm(total *Tensor, ts []*Tensor, p kernel.Norm, parts *Tensor) error {
	each := (parts.count() - 1) / len(ts)
	for i, t := range ts {
		l, one := &launch{h: h, name: "norm"}, normOf[float64]
		if t.dtype == Float32 {
			one = normOf[float32]
		}
		if err := one(l, p, t, parts, i*each); err != nil {
			return err
		}
	}
	l := &launch{h: h, name: "norm of norms"}
	all := update[float64](l, parts)
	var set func(v float64)
	if total.dtype == Float32 {
		out := write[float32](l, total)
		set = func(v float64) { out[0] = float32(v) }
	} else {
		out := write[float64](l, total)
		set = func(v float64) { out[0] = v }
	}
	return l.run(func() {
		norms := make([]float64, len(ts))
		for i := range norms {
			norms[i] = all[i*each]
		}
		v := kernel.NormOfNorms(p, norms)
		all[len(all)-1] = v
		set(v)
	})
}

func normOf[T kernel.Float](l *launch, p kernel.Norm, t, parts *Tensor, at int) error {
	in := read[T](l, t)
	out := update[float64](l, parts)
	return l.run(func() { out[at] = kernel.NormOf(p, in) })
}

func (h *hostKernels) clip(ts []*Tensor, parts *Tensor, most float64) error {
	for _, t := range ts {
		l, one := &launch{h: h, name: "clip"}, clip[float64]
		if t.dtype == Float32 {
			one = clip[float32]
		}
		if err := one(l, t, parts, most); err != nil {
			return err
		}
	}
	return nil
}

func clip[T kernel.Float](l *launch, t, parts *Tensor, most float64) error {
	l.readRange(parts.lastNumber())
	x, norm := update[T](l, t), elementsOf[float64](l.memory(parts.lastNumber()))
	return l.run(func() { kernel.Clip(x, norm[0], most) })
}

func (h *hostKernels) bound(ts []*Tensor, most float64) error {
	for _, t := range ts {
		l, one := &launch{h: h, name: "bound"}, bound[float64]
		if t.dtype == Float32 {
			one = bound[float32]
		}
		if err := one(l, t, most); err != nil {
			return err
		}
	}
	return nil
}

func bound[T kernel.Float](l *launch, t *Tensor, most float64) error {
	x := update[T](l, t)
	return l.run(func() { kernel.Bound(x, most) })
}
