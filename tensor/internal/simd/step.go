package simd

import "math"

// AdamScalars holds the numbers of a step of Adam. Shrink is the factor of the parameters, and
// Decay the multiple of the shrunk parameters that is added to the gradient. C1 is 1 - beta1, C2 is
// 1 - beta2, and Inverse is 1 over the root of the second moment's bias correction. Sign is -1 to
// maximise, otherwise 1.
type AdamScalars[T Float] struct{ Shrink, Decay, C1, Beta2, C2, Eps, Step, Inverse, Sign T }

// SGDScalars holds the numbers of a step of gradient descent. Keep is 1 minus the dampening, and
// Decay is the weight decay. Sign is -1 to maximise, otherwise 1.
type SGDScalars[T Float] struct{ LR, Momentum, Keep, Decay, Sign T }

// The plain steps round as their assembly does.

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
			vi = max(top[i], vi) // NaN counts as the greatest
			top[i] = vi
		}
		p[i] = w - T(s.Step*mi)/(T(sqrt(vi)*s.Inverse)+s.Eps)
	}
}

// Decayed returns the gradient d plus the parameter's weight decay. Without decay it returns d,
// because 0 times an infinite parameter is NaN.
func Decayed[T Float](d, decay, p T) T {
	if decay == 0 {
		return d
	}
	return d + T(decay*p)
}

// Lerp returns from + (to - from) by, computed from the nearer end, as PyTorch's lerp does. So it
// returns to if by is 1, however large from is.
func Lerp[T Float](from, to, by T) T {
	if by < 0.5 {
		return from + T((to-from)*by)
	}
	return to + T((to-from)*(by-1))
}

// sqrt compiles to one instruction for both types.
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

// gradient returns the gradient of parameter i, with the weight decay.
func (s *SGDScalars[T]) gradient(p, dp []T, i int) T {
	return Decayed(T(s.Sign*dp[i]), s.Decay, p[i])
}
