package kernel

import (
	"github.com/cistern-ml/cistern/tensor/internal/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// StepRMSprop updates the parameters p with the gradients g and the means of their squares v. mean holds the means of the gradients
// (centered), or nothing, and buf the momentum, or nothing.
func StepRMSprop[T Float](s *plan.RMSprop, own []float64, p, g, v, mean, buf []T) {
	lr, a, c, eps, wd, mom, sg := T(own[plan.RMSpropRate]), T(s.Alpha), T(s.C), T(s.Eps), T(s.Decay), T(own[plan.RMSpropMomentum]), T(s.Sign)
	split(len(p), grainCheap/4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := simd.Decayed(sg*g[i], wd, p[i])
			vi := v[i]*a + c*d*d
			v[i] = vi
			if len(mean) > 0 {
				mi := simd.Lerp(mean[i], d, c)
				mean[i] = mi
				vi -= mi * mi
			}
			by := sqrt(vi) + eps
			if len(buf) > 0 {
				b := mom*buf[i] + d/by
				buf[i] = b
				p[i] -= lr * b
			} else {
				p[i] -= lr * d / by
			}
		}
	})
}

// StepAdagrad updates the parameters p with the gradients g and the sums of their squares.
func StepAdagrad[T Float](s *plan.Adagrad, own []float64, p, g, sum []T) {
	rate, eps, wd, sg := T(own[plan.AdagradRate]), T(s.Eps), T(s.Decay), T(s.Sign)
	split(len(p), grainCheap/4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := simd.Decayed(sg*g[i], wd, p[i])
			all := sum[i] + d*d
			sum[i] = all
			p[i] -= rate * d / (sqrt(all) + eps)
		}
	})
}
