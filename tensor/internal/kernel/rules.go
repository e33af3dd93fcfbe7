package kernel

import (
	"reflect"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Rule is the step of an optimiser. It uses numbers that all parameters share, and own numbers of
// each parameter, which are in device memory in a captured step. Both are structs of up to eight
// float64. Command gen generates the operation and the indices of the numbers for GPUs from it. The
// GPU's version of the loop is in ptx/step.cu.
type Rule struct {
	Name        string
	Shared, Own any // zero values of the structs' types
	Needs       int // the number of required arrays of state, which come first
	grain       int
	single      loopOfRule[float32]
	double      loopOfRule[float64]
}

// Width returns the number of own numbers of a parameter.
func (r *Rule) Width() int { return reflect.TypeOf(r.Own).NumField() }

// loopOfRule updates parameters and up to three arrays of state, which may be empty.
type loopOfRule[T Float] func(shared *plan.Numbers, own []float64, p, g []T, state [3][]T)

// Rules are the optimisers.
var Rules = []Rule{
	{"sgd", plan.SGDShared{}, plan.SGDOwn{}, 0, grainCheap, sgd[float32], sgd[float64]},
	{"adam", plan.AdamShared{}, plan.AdamOwn{}, 2, grainCheap, adam[float32], adam[float64]},
	{"rmsprop", plan.RMSpropShared{}, plan.RMSpropOwn{}, 1, grainCheap / 4, rmsprop[float32], rmsprop[float64]},
	{"adagrad", plan.AdagradShared{}, plan.AdagradOwn{}, 1, grainCheap / 4, adagrad[float32], adagrad[float64]},
	{"lion", plan.LionShared{}, plan.LionOwn{}, 1, grainCheap / 4, lion[float32], lion[float64]},
}

// Step updates the parameters p with the gradients g and the state.
func Step[T Float](r *Rule, shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	run := either[loopOfRule[T]](r.single, r.double)
	if len(p) < 2*r.grain {
		run(shared, own, p, g, state)
		return
	}
	split(len(p), r.grain, func(lo, hi int) {
		part := state
		for i, s := range state {
			part[i] = behind(s, lo, hi)
		}
		run(shared, own, p[lo:hi], g[lo:hi], part)
	})
}

// behind returns x[lo:hi], or nil if x is empty.
func behind[T Float](x []T, lo, hi int) []T {
	if len(x) == 0 {
		return nil
	}
	return x[lo:hi]
}

// sgd's state is the momentum, if there is one.
func sgd[T Float](shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	n, o := plan.NumbersOf[plan.SGDShared](&shared[0]), plan.NumbersOf[plan.SGDOwn](&own[0])
	k := simd.SGDScalars[T]{LR: T(o.Rate), Momentum: T(o.Momentum), Keep: T(n.Keep), Decay: T(n.Decay), Sign: T(n.Sign)}
	first, nesterov := o.First != 0, n.Nesterov != 0
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		p, g, buf := p[lo:hi], g[lo:hi], behind(state[0], lo, hi)
		switch {
		case len(buf) == 0:
			simd.SGD(p, g, &k)
		case first && nesterov:
			simd.SGDFirstNesterov(p, g, buf, &k)
		case first:
			simd.SGDFirst(p, g, buf, &k)
		case nesterov:
			simd.SGDMomentumNesterov(p, g, buf, &k)
		default:
			simd.SGDMomentum(p, g, buf, &k)
		}
	}
}

// adam's state is the two moments and, for amsgrad, the greatest second moments.
func adam[T Float](shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	n, o := plan.NumbersOf[plan.AdamShared](&shared[0]), plan.NumbersOf[plan.AdamOwn](&own[0])
	k := simd.AdamScalars[T]{Shrink: T(o.Shrink), Decay: T(n.Decay), C1: T(o.C1), Beta2: T(n.Beta2),
		C2: T(n.C2), Eps: T(n.Eps), Step: T(o.Size), Inverse: T(1 / o.Correction), Sign: T(n.Sign)}
	m, v, greatest := state[0], state[1], state[2]
	for lo := 0; lo < len(p); lo += most {
		hi := min(lo+most, len(p))
		if len(greatest) > 0 {
			simd.AdamGreatest(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], greatest[lo:hi], &k)
		} else {
			simd.Adam(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], &k)
		}
	}
}

// rmsprop's state is the means of the squares, the means of the gradients if it is centered, and
// the momentum if there is one.
func rmsprop[T Float](shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	n, o := plan.NumbersOf[plan.RMSpropShared](&shared[0]), plan.NumbersOf[plan.RMSpropOwn](&own[0])
	lr, mom := T(o.Rate), T(o.Momentum)
	a, c, eps, wd, sg := T(n.Alpha), T(n.C), T(n.Eps), T(n.Decay), T(n.Sign)
	v, mean, buf := state[0], state[1], state[2]
	for i := range p {
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
}

// adagrad's state is the sums of the squares.
func adagrad[T Float](shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	n, o := plan.NumbersOf[plan.AdagradShared](&shared[0]), plan.NumbersOf[plan.AdagradOwn](&own[0])
	rate, eps, wd, sg := T(o.Rate), T(n.Eps), T(n.Decay), T(n.Sign)
	sum := state[0]
	for i := range p {
		d := simd.Decayed(sg*g[i], wd, p[i])
		all := sum[i] + d*d
		sum[i] = all
		p[i] -= rate * d / (sqrt(all) + eps)
	}
}

// lion's state is the momentum.
func lion[T Float](shared *plan.Numbers, own []float64, p, g []T, state [3][]T) {
	n, o := plan.NumbersOf[plan.LionShared](&shared[0]), plan.NumbersOf[plan.LionOwn](&own[0])
	b1, c1, b2, c2, sg, lr, shrink := T(n.Beta1), T(n.C1), T(n.Beta2), T(n.C2), T(n.Sign), T(o.Rate), T(o.Shrink)
	m := state[0]
	for i := range p {
		d := sg * g[i]
		u := T(b1*m[i]) + T(c1*d)
		switch {
		case u > 0:
			u = 1
		case u < 0:
			u = -1
		}
		m[i] = T(b2*m[i]) + T(c2*d)
		p[i] = T(p[i]*shrink) - T(lr*u)
	}
}
