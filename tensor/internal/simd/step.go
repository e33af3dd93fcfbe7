package simd

import "math"

// AdamScalars are the numbers of a step of Adam: what parameters shrink by, and then are added to the gradient as; 1 - beta1, beta2,
// 1 - beta2, epsilon, the step's size, 1 over the root of the second moment's correction, and -1 for gradients that count with the
// other sign.
type AdamScalars[T Float] struct{ Shrink, Decay, C1, Beta2, C2, Eps, Step, Inverse, Sign T }

// SGDScalars are the numbers of a step of gradient descent: the learning rate, the momentum, 1 less the dampening, the weight decay,
// and -1 for gradients that count with the other sign.
type SGDScalars[T Float] struct{ LR, Momentum, Keep, Decay, Sign T }

// Steps round as their assembly does.

func plainAdam[T Float](p, dp, m, v []T, s *AdamScalars[T]) { adamBy(p, dp, m, v, nil, s) }

func plainAdamGreatest[T Float](p, dp, m, v, top []T, s *AdamScalars[T]) { adamBy(p, dp, m, v, top, s) }

func adamBy[T Float](p, dp, m, v, top []T, s *AdamScalars[T]) {
	dp, m, v = dp[:len(p)], m[:len(p)], v[:len(p)]
	for i := range p {
		w := p[i] * s.Shrink
		d := Decayed(T(s.Sign*dp[i]), s.Decay, w)
		mi := Lerp(m[i], d, s.C1)
		vi := T(v[i]*s.Beta2) + T(T(s.C2*d)*d)
		m[i], v[i] = mi, vi
		if len(top) > 0 {
			vi = max(top[i], vi) // NaN is the greatest
			top[i] = vi
		}
		p[i] = w - T(s.Step*mi)/(T(sqrt(vi)*s.Inverse)+s.Eps)
	}
}

// Decayed is the gradient d with the decay of a parameter: without it d itself, because 0 times an
// infinite parameter is NaN.
func Decayed[T Float](d, decay, p T) T {
	if decay == 0 {
		return d
	}
	return d + T(decay*p)
}

// Lerp is from + (to - from) by, from the nearer end, as PyTorch's lerp: of 1 it is to, however large from is.
func Lerp[T Float](from, to, by T) T {
	if by < 0.5 {
		return from + T((to-from)*by)
	}
	return to + T((to-from)*(by-1))
}

// sqrt compiles to one instruction for either type.
func sqrt[T Float](v T) T { return T(math.Sqrt(float64(v))) }

func plainSGD[T Float](p, dp []T, s *SGDScalars[T]) {
	for i := range p {
		p[i] -= T(s.LR * s.gradient(p, dp, i))
	}
}

func plainSGDMomentum[T Float](p, dp, buf []T, s *SGDScalars[T]) {
	for i := range p {
		buf[i] = T(s.Momentum*buf[i]) + T(s.Keep*s.gradient(p, dp, i))
		p[i] -= T(s.LR * buf[i])
	}
}

func plainSGDMomentumNesterov[T Float](p, dp, buf []T, s *SGDScalars[T]) {
	for i := range p {
		d := s.gradient(p, dp, i)
		buf[i] = T(s.Momentum*buf[i]) + T(s.Keep*d)
		p[i] -= T(s.LR * (d + T(s.Momentum*buf[i])))
	}
}

func plainSGDFirst[T Float](p, dp, buf []T, s *SGDScalars[T]) {
	for i := range p {
		buf[i] = s.gradient(p, dp, i)
		p[i] -= T(s.LR * buf[i])
	}
}

func plainSGDFirstNesterov[T Float](p, dp, buf []T, s *SGDScalars[T]) {
	for i := range p {
		d := s.gradient(p, dp, i)
		buf[i] = d
		p[i] -= T(s.LR * (d + T(s.Momentum*d)))
	}
}

// gradient is that of parameter i, with the decay.
func (s *SGDScalars[T]) gradient(p, dp []T, i int) T {
	return Decayed(T(s.Sign*dp[i]), s.Decay, p[i])
}
