package kernel

// SGD is one step of stochastic gradient descent with PyTorch's meaning of every number.
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	First                                bool // the momentum buffer holds nothing yet
	Maximize                             bool // the gradients count with the other sign
}

// sign is what an optimiser multiplies gradients with.
func sign[T Float](maximize bool) T {
	if maximize {
		return -1
	}
	return 1
}

// StepSGD updates the parameters p with the gradients g. buf is the momentum buffer; it is empty if there is
// no momentum.
func StepSGD[T Float](s SGD, p, g, buf []T) {
	lr, mom, keep, wd, sg := T(s.LR), T(s.Momentum), T(1-s.Dampening), T(s.WeightDecay), sign[T](s.Maximize)
	split(len(p), grainCheap, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := sg*g[i] + wd*p[i]
			if len(buf) > 0 {
				v := d
				if !s.First {
					v = mom*buf[i] + keep*d
				}
				buf[i] = v
				if s.Nesterov {
					d += mom * v
				} else {
					d = v
				}
			}
			p[i] -= lr * d
		}
	})
}

// Adam is one step of Adam or AdamW, with PyTorch's meaning of every number.
type Adam struct {
	LR, WeightDecay float64
	Decoupled       bool // AdamW: the decay shrinks the parameter instead of joining the gradient
	Beta1, Beta2    float64
	Eps             float64
	StepSize        float64 // LR / (1 - Beta1**t)
	Correction      float64 // sqrt(1 - Beta2**t)
	Maximize        bool
}

// StepAdam updates the parameters p with the gradients g and the moments m and v, in place. greatest holds the greatest second
// moments (amsgrad), or nothing.
func StepAdam[T Float](s Adam, p, g, m, v, greatest []T) {
	split(len(p), grainCheap/4, func(lo, hi int) {
		var top []T
		if len(greatest) > 0 {
			top = greatest[lo:hi]
		}
		adam(s, p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], top)
	})
}

func adam[T Float](s Adam, p, g, m, v, greatest []T) {
	shrink, decay := T(1), T(s.WeightDecay)
	if s.Decoupled {
		shrink, decay = T(1-s.LR*s.WeightDecay), 0
	}
	c1, b2, c2 := T(1-s.Beta1), T(s.Beta2), T(1-s.Beta2)
	eps, step, correction, sg := T(s.Eps), T(s.StepSize), T(s.Correction), sign[T](s.Maximize)
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	for i := range p {
		w := p[i] * shrink
		d := sg*g[i] + decay*w
		mi := m[i] + (d-m[i])*c1
		vi := v[i]*b2 + c2*d*d
		m[i], v[i] = mi, vi
		if len(greatest) > 0 {
			vi = max(greatest[i], vi) // NaN is the greatest
			greatest[i] = vi
		}
		p[i] = w - step*mi/(sqrt(vi)/correction+eps)
	}
}
