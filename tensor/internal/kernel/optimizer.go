package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

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
	if len(p) < 2*grainCheap {
		sgd(s, p, g, buf)
		return
	}
	split(len(p), grainCheap, func(lo, hi int) { sgd(s, p[lo:hi], g[lo:hi], behind(buf, lo, hi)) })
}

// behind is the part of x, or nothing of nothing.
func behind[T Float](x []T, lo, hi int) []T {
	if len(x) == 0 {
		return nil
	}
	return x[lo:hi]
}

// momentum is what a step does with the buffer.
func (s *SGD) momentum(buffer bool) simd.Momentum {
	switch {
	case !buffer:
		return simd.NoMomentum
	case s.First && s.Nesterov:
		return simd.FirstNesterov
	case s.First:
		return simd.FirstMomentum
	case s.Nesterov:
		return simd.LaterNesterov
	}
	return simd.LaterMomentum
}

func sgd[T Float](s SGD, p, g, buf []T) {
	k := simd.SGDScalars[T]{LR: T(s.LR), Momentum: T(s.Momentum), Keep: T(1 - s.Dampening), Decay: T(s.WeightDecay), Sign: sign[T](s.Maximize)}
	how := s.momentum(len(buf) > 0)
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		if p, g, buf := p[lo:hi], g[lo:hi], behind(buf, lo, hi); !simd.SGD(how, p, g, buf, &k) {
			plainSGD(how, p, g, buf, &k)
		}
	}
}

func plainSGD[T Float](how simd.Momentum, p, g, buf []T, k *simd.SGDScalars[T]) {
	for i := range p {
		d := k.Sign*g[i] + k.Decay*p[i]
		if how != simd.NoMomentum {
			v := d
			if how <= simd.LaterNesterov {
				v = k.Momentum*buf[i] + k.Keep*d
			}
			buf[i] = v
			if how == simd.LaterNesterov || how == simd.FirstNesterov {
				d += k.Momentum * v
			} else {
				d = v
			}
		}
		p[i] -= k.LR * d
	}
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
	if len(p) < 2*grainCheap {
		adam(s, p, g, m, v, greatest)
		return
	}
	split(len(p), grainCheap, func(lo, hi int) { adam(s, p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], behind(greatest, lo, hi)) })
}

func adam[T Float](s Adam, p, g, m, v, greatest []T) {
	k := simd.AdamScalars[T]{Shrink: 1, Decay: T(s.WeightDecay), C1: T(1 - s.Beta1), Beta2: T(s.Beta2), C2: T(1 - s.Beta2), Eps: T(s.Eps),
		Step: T(s.StepSize), Inverse: T(1 / s.Correction), Sign: sign[T](s.Maximize)}
	if s.Decoupled {
		k.Shrink, k.Decay = T(1-s.LR*s.WeightDecay), 0
	}
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		if p, g, m, v, top := p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], behind(greatest, lo, hi); !simd.Adam(p, g, m, v, top, &k) {
			plainAdam(p, g, m, v, top, &k)
		}
	}
}

func plainAdam[T Float](p, g, m, v, greatest []T, k *simd.AdamScalars[T]) {
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	for i := range p {
		w := p[i] * k.Shrink
		d := k.Sign*g[i] + k.Decay*w
		mi := m[i] + (d-m[i])*k.C1
		vi := v[i]*k.Beta2 + k.C2*d*d
		m[i], v[i] = mi, vi
		if len(greatest) > 0 {
			vi = max(greatest[i], vi) // NaN is the greatest
			greatest[i] = vi
		}
		p[i] = w - k.Step*mi/(sqrt(vi)*k.Inverse+k.Eps)
	}
}
