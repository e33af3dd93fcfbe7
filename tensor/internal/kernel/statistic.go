package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Statistic is what a reduction computes besides a sum.
type Statistic uint8

const (
	Amax       Statistic = iota // the greatest element; NaN if any is NaN
	Max                         // Amax, with a gradient in which NaNs are equal
	LogSumExp                   // the logarithm of the sum of exponentials
	Var                         // the sum of squared deviations, over the number of elements less c
	VectorNorm                  // the norm of c: 1, 2 or +Inf
	// Amin is the smallest element; NaN if any is NaN. Its gradients are those of Amax and Max.
	Amin
)

// group holds the elements of one output.
type group[T Float] struct {
	from []T // x from the first element on
	dims []plan.Dim
	n    int
}

func (g group[T]) at(i int) float64 { return float64(g.from[plan.Offset(g.dims, i)]) }

// groups calls f for every output.
func groups[T Float](outputs int, x []T, p *plan.Reduction, f func(o int, g group[T])) {
	n := count(p.Summed)
	split(outputs, max(1, grainMath/max(1, n)), func(lo, hi int) {
		for o := lo; o < hi; o++ {
			f(o, group[T]{x[plan.Offset(p.Kept, o):], p.Summed, n})
		}
	})
}

// Reduce sets dst to a statistic of x over the dimensions of p, computed in float64. The greatest
// of no elements is -Inf.
func Reduce[T Float](s Statistic, dst, x []T, c float64, p *plan.Reduction) {
	groups(len(dst), x, p, func(o int, g group[T]) {
		switch s {
		case LogSumExp:
			top := finiteOr0(g.greatest())
			dst[o] = T(top + math.Log(sumOf(0, g.n, func(i int) float64 { return math.Exp(g.at(i) - top) })))
		case Var:
			mean := g.mean()
			dst[o] = T(sumOf(0, g.n, func(i int) float64 { d := g.at(i) - mean; return d * d }) / max(0, float64(g.n)-c))
		case VectorNorm:
			dst[o] = T(g.norm(c))
		case Amin:
			dst[o] = T(-g.greatestOf(func(v float64) float64 { return -v }))
		default:
			dst[o] = T(g.greatest())
		}
	})
}

// ReduceGrad sets dst to the gradient of x; dy is the gradient of the statistic y of [Reduce].
// Elements that are equal to the greatest one share its gradient. y is not read for Var.
func ReduceGrad[T Float](s Statistic, dst, dy, x, y []T, c float64, p *plan.Reduction) {
	groups(len(dy), x, p, func(o int, g group[T]) {
		out, d := dst[plan.Offset(p.Kept, o):], float64(dy[o])
		each := func(f func(v float64) float64) {
			for i := range g.n {
				out[plan.Offset(g.dims, i)] = T(f(g.at(i)))
			}
		}
		switch s {
		case LogSumExp:
			all := float64(y[o])
			each(func(v float64) float64 { return d * math.Exp(v-all) })
		case Var:
			mean, scale := g.mean(), 2/(float64(g.n)-c)
			each(func(v float64) float64 { return scale * d * (v - mean) })
		case VectorNorm:
			each(g.normSlope(d, float64(y[o]), c))
		default:
			top, n := float64(y[o]), 0
			wins := func(v float64) bool { return v == top || s == Max && v != v && top != top }
			for i := range g.n {
				if wins(g.at(i)) {
					n++
				}
			}
			rest := 0.0
			if n == 0 {
				rest = math.NaN()
			}
			each(func(v float64) float64 {
				if wins(v) {
					return d / float64(n)
				}
				return rest
			})
		}
	})
}

func (g group[T]) greatest() float64 {
	return g.greatestOf(func(v float64) float64 { return v })
}

// greatestOf returns the greatest f of an element, or NaN if any is NaN.
func (g group[T]) greatestOf(f func(v float64) float64) float64 {
	top := math.Inf(-1)
	for i := range g.n {
		v := f(g.at(i))
		if v != v {
			return v
		}
		top = max(top, v)
	}
	return top
}

// norm returns the p-norm for a p of 1, 2 or +Inf.
func (g group[T]) norm(p float64) float64 {
	switch p {
	case 1:
		return sumOf(0, g.n, func(i int) float64 { return math.Abs(g.at(i)) })
	case 2:
		return math.Sqrt(sumOf(0, g.n, func(i int) float64 { return g.at(i) * g.at(i) }))
	}
	return g.greatestOf(math.Abs)
}

// normSlope returns the gradient of an element for a gradient d of the norm. It is 0 where the norm
// is not differentiable. For +Inf the greatest elements have equal shares.
func (g group[T]) normSlope(d, norm, p float64) func(v float64) float64 {
	switch p {
	case 1:
		return func(v float64) float64 { return d * sign(v) }
	case 2:
		return func(v float64) float64 {
			if norm == 0 {
				return 0
			}
			return d * (v / norm)
		}
	}
	n := 0
	for i := range g.n {
		if math.Abs(g.at(i)) == norm {
			n++
		}
	}
	return func(v float64) float64 {
		if math.Abs(v) == norm {
			return d / float64(n) * sign(v)
		}
		return 0
	}
}

// sign returns 1, -1, or 0 for zeros and NaN.
func sign(v float64) float64 {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

func (g group[T]) mean() float64 { return sumOf(0, g.n, g.at) / float64(g.n) }

// finiteOr0 returns v, or 0 if v is infinite. Exponentials are taken relative to the result, which
// must be finite.
func finiteOr0(v float64) float64 {
	if math.IsInf(v, 0) {
		return 0
	}
	return v
}
