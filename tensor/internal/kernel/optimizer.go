package kernel

import (
	"github.com/cistern-ml/cistern/tensor/internal/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// StepSGD updates the parameters p with the gradients g. buf is the momentum buffer; it is empty if there is
// no momentum.
func StepSGD[T Float](s *plan.SGD, own []float64, p, g, buf []T) {
	k := simd.SGDScalars[T]{LR: T(own[plan.SGDRate]), Momentum: T(own[plan.SGDMomentum]), Keep: T(s.Keep), Decay: T(s.Decay), Sign: T(s.Sign)}
	first := own[plan.SGDFirst] != 0
	if len(p) < 2*grainCheap {
		sgd(&k, first, s.Nesterov, p, g, buf)
		return
	}
	many, nesterov := k, s.Nesterov
	split(len(p), grainCheap, func(lo, hi int) { sgd(&many, first, nesterov, p[lo:hi], g[lo:hi], behind(buf, lo, hi)) })
}

// behind is the part of x, or nothing of nothing.
func behind[T Float](x []T, lo, hi int) []T {
	if len(x) == 0 {
		return nil
	}
	return x[lo:hi]
}

func sgd[T Float](k *simd.SGDScalars[T], first, nesterov bool, p, g, buf []T) {
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		p, g, buf := p[lo:hi], g[lo:hi], behind(buf, lo, hi)
		switch {
		case len(buf) == 0:
			simd.SGD(p, g, k)
		case first && nesterov:
			simd.SGDFirstNesterov(p, g, buf, k)
		case first:
			simd.SGDFirst(p, g, buf, k)
		case nesterov:
			simd.SGDMomentumNesterov(p, g, buf, k)
		default:
			simd.SGDMomentum(p, g, buf, k)
		}
	}
}

// StepAdam updates the parameters p with the gradients g and the moments m and v, in place. greatest holds the greatest second
// moments (amsgrad), or nothing.
func StepAdam[T Float](s *plan.Adam, own []float64, p, g, m, v, greatest []T) {
	k := simd.AdamScalars[T]{Shrink: T(own[plan.AdamShrink]), Decay: T(s.Decay), C1: T(own[plan.AdamC1]), Beta2: T(s.Beta2), C2: T(s.C2), Eps: T(s.Eps),
		Step: T(own[plan.AdamSize]), Inverse: T(1 / own[plan.AdamCorrection]), Sign: T(s.Sign)}
	if len(p) < 2*grainCheap {
		adam(&k, p, g, m, v, greatest)
		return
	}
	many := k
	split(len(p), grainCheap, func(lo, hi int) { adam(&many, p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], behind(greatest, lo, hi)) })
}

func adam[T Float](k *simd.AdamScalars[T], p, g, m, v, greatest []T) {
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		if len(greatest) > 0 {
			simd.AdamGreatest(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], greatest[lo:hi], k)
		} else {
			simd.Adam(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], k)
		}
	}
}
