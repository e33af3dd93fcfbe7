package autograd_test

import (
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// kink keeps operands away from the kinks of a function.
func (op graphOp) kink(edges ...float64) graphOp {
	return op.within(func(d *domain, _ params, xs []array) {
		for _, e := range edges {
			d.keepFrom(xs[0], e)
		}
	})
}

// apart keeps elements of two operands apart, because a maximum of equal ones has a kink.
func (op graphOp) apart() graphOp {
	return op.within(func(d *domain, _ params, xs []array) {
		if distance, ok := zip(xs[0], xs[1], func(x, y float64) float64 { return x - y }); ok {
			d.keepFrom(distance, 0)
		}
	})
}

// reduction is a function of the elements over some axes.
func reduction(name string, f func(group []float64) float64, tape func(t *autograd.Tape, x *autograd.Variable, axes ...int) *autograd.Variable) graphOp {
	return graphOp{name, 1, someAxes, func(_ *domain, p params, xs []array) (array, bool) {
		if len(xs[0].data) == 0 {
			return array{}, false
		}
		return xs[0].reduced(p.axes, f), true
	}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
		return tape(t, vs[0], p.axes...)
	}}
}

// reduced is f of the elements over the axes, of all if there are none.
func (a array) reduced(axes []int, f func(group []float64) float64) array {
	y := a.sum(axes, false)
	groups := make([][]float64, len(y.data))
	each(a.shape, func(i int, index []int) {
		var to []int
		for d, j := range index {
			if len(axes) > 0 && !slices.Contains(axes, d) && !slices.Contains(axes, d-len(a.shape)) {
				to = append(to, j)
			}
		}
		at := y.offset(to)
		groups[at] = append(groups[at], a.data[i])
	})
	for i, g := range groups {
		y.data[i] = f(g)
	}
	return y
}

func logSumExp(group []float64) float64 {
	sum := 0.0
	for _, v := range group {
		sum += math.Exp(v)
	}
	return math.Log(sum)
}

func variance(group []float64) float64 {
	mean, sum := 0.0, 0.0
	for _, v := range group {
		mean += v / float64(len(group))
	}
	for _, v := range group {
		sum += (v - mean) * (v - mean)
	}
	return sum / float64(len(group))
}

// separate keeps elements of one array apart, because their maximum has a kink if the two greatest
// are equal.
func (op graphOp) separate() graphOp {
	return op.within(func(d *domain, _ params, xs []array) {
		all := slices.Sorted(slices.Values(xs[0].data))
		for i := range len(all) - 1 {
			d.margin = min(d.margin, all[i+1]-all[i])
		}
	})
}

// someAxis is one axis, counted from either end.
func someAxis(random choice, xs []array) params {
	if n := len(xs[0].shape); n > 0 {
		return params{axes: []int{random.IntN(2*n) - n}}
	}
	return params{}
}

// pair is a loss of two arrays of one shape.
func pair(name string, f func(x, y float64) float64, tape func(t *autograd.Tape, x, target *autograd.Variable, options ...tensor.LossOption) *autograd.Variable) graphOp {
	return graphOp{name, 2, nil, func(_ *domain, _ params, xs []array) (array, bool) {
		y, ok := zip(xs[0], xs[1], f)
		if !ok || len(y.data) == 0 || !slices.Equal(xs[0].shape, xs[1].shape) {
			return array{}, false
		}
		return y.sum(nil, true), true
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		return tape(t, vs[0], vs[1])
	}}
}

func init() {
	graphOps = append(graphOps,
		elementwise("Abs", math.Abs, (*autograd.Tape).Abs).kink(0),
		elementwise("Sin", math.Sin, (*autograd.Tape).Sin), elementwise("Cos", math.Cos, (*autograd.Tape).Cos),
		elementwise("Erf", math.Erf, (*autograd.Tape).Erf),
		elementwise("Rsqrt", func(x float64) float64 { return math.Pow(x, -0.5) }, (*autograd.Tape).Rsqrt).
			within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[0], 0) }),
		elementwise("GELU", func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }, (*autograd.Tape).GELU),
		elementwise("GELUTanh", func(x float64) float64 {
			return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}, (*autograd.Tape).GELUTanh),
		elementwise("SiLU", func(x float64) float64 { return x / (1 + math.Exp(-x)) }, (*autograd.Tape).SiLU),
		elementwise("LogSigmoid", func(x float64) float64 { return -math.Log(1 + math.Exp(-x)) }, (*autograd.Tape).LogSigmoid),
		scalar("ELU", []float64{1, 0.5, -1}, func(x, c float64) float64 {
			if x > 0 {
				return x
			}
			return c * (math.Exp(x) - 1)
		}, (*autograd.Tape).ELU).kink(0),
		scalar("Softplus", []float64{1, 2, 0.5}, func(x, c float64) float64 {
			if x*c > 3 {
				return x
			}
			return math.Log(1+math.Exp(c*x)) / c
		}, func(t *autograd.Tape, x *autograd.Variable, c float64) *autograd.Variable { return t.Softplus(x, c, 3) }).kink(3, 1.5, 6),
		scalar("LeakyReLU", []float64{0.1, -0.5, 0}, func(x, c float64) float64 { return max(x, 0) + c*min(x, 0) }, (*autograd.Tape).LeakyReLU).kink(0),
		scalar("Hardtanh", []float64{1, 0.5}, func(x, c float64) float64 { return max(-c, min(c, x)) },
			func(t *autograd.Tape, x *autograd.Variable, c float64) *autograd.Variable {
				return t.Hardtanh(x, -c, c)
			}).kink(-1, -0.5, 0.5, 1),
		scalar("Clamp", []float64{0.75, math.Inf(1)}, func(x, c float64) float64 { return max(-0.25, min(c, x)) },
			func(t *autograd.Tape, x *autograd.Variable, c float64) *autograd.Variable {
				return t.Clamp(x, -0.25, c)
			}).kink(-0.25, 0.75),
		zipped("Maximum", math.Max, (*autograd.Tape).Maximum).apart(), zipped("Minimum", math.Min, (*autograd.Tape).Minimum).apart(),
		zipped("Pow", math.Pow, (*autograd.Tape).Pow).within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[0], 0) }),
		elementwise("Log1p", func(x float64) float64 { return math.Log(1 + x) }, (*autograd.Tape).Log1p).
			within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[0], -1) }),
		elementwise("Expm1", func(x float64) float64 { return math.Exp(x) - 1 }, (*autograd.Tape).Expm1),
		graphOp{"MaskedFill", 1, nil, func(_ *domain, _ params, xs []array) (array, bool) {
			y := array{xs[0].shape, slices.Clone(xs[0].data)}
			for i := 1; i < len(y.data); i += 2 {
				y.data[i] = 0.5
			}
			return y, len(y.shape) > 0
		}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
			odd := make([]uint8, vs[0].Value().Elements())
			for i := range odd {
				odd[i] = uint8(i % 2)
			}
			return t.MaskedFill(vs[0], autograd.Upload(t, odd, vs[0].Shape()...), 0.5)
		}},
		graphOp{"Tril", 1, nil, func(_ *domain, _ params, xs []array) (array, bool) {
			n := len(xs[0].shape)
			if n < 2 {
				return array{}, false
			}
			y := array{xs[0].shape, slices.Clone(xs[0].data)}
			for i := range y.data {
				if col := i % y.shape[n-1]; col > i/y.shape[n-1]%y.shape[n-2]-1 {
					y.data[i] = 0
				}
			}
			return y, true
		}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable { return t.Tril(vs[0], -1) }},
		reduction("Amax", slices.Max, (*autograd.Tape).Amax).separate(), reduction("LogSumExp", logSumExp, (*autograd.Tape).LogSumExp),
		reduction("Var", variance, func(t *autograd.Tape, x *autograd.Variable, axes ...int) *autograd.Variable {
			return t.Var(x, 0, axes...)
		}),
		graphOp{"LogSoftmax", 1, someAxis, func(_ *domain, p params, xs []array) (array, bool) {
			if len(p.axes) == 0 || len(xs[0].data) == 0 {
				return array{}, false
			}
			sums := xs[0].reduced(p.axes, logSumExp)
			sums.shape = slices.Clone(xs[0].shape)
			sums.shape[(p.axes[0]+len(sums.shape))%len(sums.shape)] = 1
			return zip(xs[0], sums, func(x, y float64) float64 { return x - y })
		}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.LogSoftmax(vs[0], p.axes...)
		}},
		pair("MSELoss", func(x, y float64) float64 { return (x - y) * (x - y) }, toVariable((*autograd.Tape).MSELoss)),
		pair("L1Loss", func(x, y float64) float64 { return math.Abs(x - y) }, toVariable((*autograd.Tape).L1Loss)).apart(),
		pair("KLDivLoss", func(x, y float64) float64 { return y * (math.Log(y) - x) }, toVariable((*autograd.Tape).KLDivLoss)).
			within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[1], 0) }),
		pair("BCEWithLogits", func(x, y float64) float64 { return math.Log(1+math.Exp(x)) - x*y }, toVariable((*autograd.Tape).BCEWithLogits)),
	)
}

// toVariable is a loss whose target is a variable.
func toVariable(op func(*autograd.Tape, *autograd.Variable, autograd.Target, ...tensor.LossOption) *autograd.Variable) func(*autograd.Tape, *autograd.Variable, *autograd.Variable, ...tensor.LossOption) *autograd.Variable {
	return func(t *autograd.Tape, x, target *autograd.Variable, options ...tensor.LossOption) *autograd.Variable {
		return op(t, x, target, options...)
	}
}
