package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// RMSprop is one step of RMSprop, with PyTorch's meaning of every number.
type RMSprop struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool
}

// StepRMSprop updates the parameters p with the gradients g and the means of their squares v. mean holds the means of the gradients
// (centered), or nothing, and buf the momentum, or nothing.
func StepRMSprop[T Float](s RMSprop, p, g, v, mean, buf []T) {
	lr, a, c, eps, wd, mom, sg := T(s.LR), T(s.Alpha), T(1-s.Alpha), T(s.Eps), T(s.WeightDecay), T(s.Momentum), sign[T](s.Maximize)
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

// Adagrad is one step of Adagrad, with PyTorch's meaning of every number.
type Adagrad struct {
	Rate        float64 // LR / (1 + (t - 1) LRDecay)
	WeightDecay float64
	Eps         float64
	Maximize    bool
}

// StepAdagrad updates the parameters p with the gradients g and the sums of their squares.
func StepAdagrad[T Float](s Adagrad, p, g, sum []T) {
	rate, eps, wd, sg := T(s.Rate), T(s.Eps), T(s.WeightDecay), sign[T](s.Maximize)
	split(len(p), grainCheap/4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := simd.Decayed(sg*g[i], wd, p[i])
			all := sum[i] + d*d
			sum[i] = all
			p[i] -= rate * d / (sqrt(all) + eps)
		}
	})
}
