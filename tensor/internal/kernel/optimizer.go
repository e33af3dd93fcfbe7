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

func sgd[T Float](s SGD, p, g, buf []T) {
	k := simd.SGDScalars[T]{LR: T(s.LR), Momentum: T(s.Momentum), Keep: T(1 - s.Dampening), Decay: T(s.WeightDecay), Sign: sign[T](s.Maximize)}
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		p, g, buf := p[lo:hi], g[lo:hi], behind(buf, lo, hi)
		switch {
		case len(buf) == 0:
			simd.SGD(p, g, &k)
		case s.First && s.Nesterov:
			simd.SGDFirstNesterov(p, g, buf, &k)
		case s.First:
			simd.SGDFirst(p, g, buf, &k)
		case s.Nesterov:
			simd.SGDMomentumNesterov(p, g, buf, &k)
		default:
			simd.SGDMomentum(p, g, buf, &k)
		}
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
		if len(greatest) > 0 {
			simd.AdamGreatest(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], greatest[lo:hi], &k)
		} else {
			simd.Adam(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], &k)
		}
	}
}
