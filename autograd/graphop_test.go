package autograd_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// choice is the source of a random graph: a generator, or the bytes of a fuzzer.
type choice interface{ IntN(n int) int }

// params are the arguments of an operation besides its operands.
type params struct {
	c              float64
	axes, shape    []int
	transA, transB bool
	labels         []int32
}

// domain has the distance of operands from a kink, a pole or an end of a function. Differences
// across one are not gradients.
type domain struct{ margin float64 }

func (d *domain) keepFrom(a array, edge float64) {
	for _, v := range a.data {
		d.margin = min(d.margin, math.Abs(v-edge))
	}
}

func (d *domain) keepAbove(a array, edge float64) {
	for _, v := range a.data {
		d.margin = min(d.margin, v-edge)
	}
}

// graphOp is an operation of random graphs, on the tape and in the reference. naive is false if the
// operation does not take the operands.
type graphOp struct {
	name    string
	arity   int
	options func(random choice, xs []array) params
	naive   func(d *domain, p params, xs []array) (array, bool)
	tape    func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable
}

func elementwise(name string, f func(float64) float64, tape func(*autograd.Tape, *autograd.Variable) *autograd.Variable) graphOp {
	return graphOp{name, 1, nil, func(_ *domain, _ params, xs []array) (array, bool) { return xs[0].each(f), true },
		func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable { return tape(t, vs[0]) }}
}

func (op graphOp) within(check func(d *domain, p params, xs []array)) graphOp {
	inner := op.naive
	op.naive = func(d *domain, p params, xs []array) (array, bool) {
		check(d, p, xs)
		return inner(d, p, xs)
	}
	return op
}

func zipped(name string, f func(x, y float64) float64, tape func(t *autograd.Tape, a, b *autograd.Variable) *autograd.Variable) graphOp {
	return graphOp{name, 2, nil, func(_ *domain, _ params, xs []array) (array, bool) { return zip(xs[0], xs[1], f) },
		func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
			return tape(t, vs[0], vs[1])
		}}
}

func scalar(name string, scalars []float64, f func(x, c float64) float64, tape func(t *autograd.Tape, x *autograd.Variable, c float64) *autograd.Variable) graphOp {
	return graphOp{name, 1, func(random choice, _ []array) params { return params{c: scalars[random.IntN(len(scalars))]} },
		func(_ *domain, p params, xs []array) (array, bool) {
			return xs[0].each(func(x float64) float64 { return f(x, p.c) }), true
		},
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return tape(t, vs[0], p.c)
		}}
}

func relu(x float64) float64 { return max(x, 0) }

// dense is a linear layer of two or three operands, with or without ReLU.
func dense(name string, bias, rectified bool) graphOp {
	op := graphOp{name: name, arity: 2}
	if bias {
		op.arity = 3
	}
	op.naive = func(d *domain, _ params, xs []array) (array, bool) {
		if len(xs[1].shape) != 2 {
			return array{}, false
		}
		y, ok := matmul(xs[0], xs[1], false, true)
		if ok && bias {
			if ok = slices.Equal(xs[2].shape, y.shape[len(y.shape)-1:]); ok {
				y, ok = zip(y, xs[2], func(x, y float64) float64 { return x + y })
			}
		}
		if ok && rectified {
			d.keepFrom(y, 0)
			y = y.each(relu)
		}
		return y, ok
	}
	op.tape = func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		var b *autograd.Variable
		if bias {
			b = vs[2]
		}
		if rectified {
			return t.LinearReLU(vs[0], vs[1], b)
		}
		return t.Linear(vs[0], vs[1], b)
	}
	return op
}

func someAxes(random choice, xs []array) params {
	var p params
	for d := range xs[0].shape {
		switch random.IntN(4) {
		case 0:
			p.axes = append(p.axes, d)
		case 1:
			p.axes = append(p.axes, d-len(xs[0].shape))
		}
	}
	return p
}

// twoAxes may be the same one; a scalar has none.
func twoAxes(random choice, xs []array) (p params) {
	if n := len(xs[0].shape); n > 0 {
		p.axes = []int{random.IntN(n), random.IntN(n) - n}
	}
	return p
}

func flags(random choice, _ []array) params {
	form := random.IntN(4)
	return params{transA: form&1 != 0, transB: form&2 != 0}
}

// factors is a random shape of the same number of elements.
func factors(random choice, xs []array) params {
	n := len(xs[0].data)
	if n == 0 {
		return params{shape: xs[0].shape}
	}
	shape := []int{}
	for _, d := range []int{2, 3, 2, 3, 5} {
		if n%d == 0 && random.IntN(2) == 0 {
			shape, n = append(shape, d), n/d
		}
	}
	return params{shape: slices.Insert(shape, random.IntN(len(shape)+1), n)}
}

var graphOps = []graphOp{
	zipped("Add", func(x, y float64) float64 { return x + y }, (*autograd.Tape).Add),
	zipped("Sub", func(x, y float64) float64 { return x - y }, (*autograd.Tape).Sub),
	zipped("Mul", func(x, y float64) float64 { return x * y }, (*autograd.Tape).Mul),
	zipped("Div", func(x, y float64) float64 { return x / y }, (*autograd.Tape).Div).
		within(func(d *domain, _ params, xs []array) { d.keepFrom(xs[1], 0) }),
	elementwise("Neg", func(x float64) float64 { return -x }, (*autograd.Tape).Neg),
	elementwise("Exp", math.Exp, (*autograd.Tape).Exp),
	elementwise("Log", math.Log, (*autograd.Tape).Log).within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[0], 0) }),
	elementwise("Tanh", math.Tanh, (*autograd.Tape).Tanh),
	elementwise("Sigmoid", func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, (*autograd.Tape).Sigmoid),
	elementwise("Sqrt", math.Sqrt, (*autograd.Tape).Sqrt).within(func(d *domain, _ params, xs []array) { d.keepAbove(xs[0], 0) }),
	elementwise("Square", func(x float64) float64 { return x * x }, (*autograd.Tape).Square),
	elementwise("ReLU", relu, (*autograd.Tape).ReLU).within(func(d *domain, _ params, xs []array) { d.keepFrom(xs[0], 0) }),
	scalar("MulScalar", []float64{-2, 0.5, 0, 1}, func(x, c float64) float64 { return x * c }, (*autograd.Tape).MulScalar),
	scalar("AddScalar", []float64{-1, 0.75, 3}, func(x, c float64) float64 { return x + c }, (*autograd.Tape).AddScalar),
	scalar("PowScalar", []float64{0, 1, 2, 3, -1, 0.5, 2.5}, math.Pow, (*autograd.Tape).PowScalar).
		within(func(d *domain, p params, xs []array) {
			if p.c != math.Trunc(p.c) || p.c < 0 {
				d.keepAbove(xs[0], 0)
			}
		}),
	{"Sum", 1, someAxes, func(_ *domain, p params, xs []array) (array, bool) { return xs[0].sum(p.axes, false), true },
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.Sum(vs[0], p.axes...)
		}},
	{"Mean", 1, someAxes, func(_ *domain, p params, xs []array) (array, bool) {
		return xs[0].sum(p.axes, true), len(xs[0].data) > 0
	},
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.Mean(vs[0], p.axes...)
		}},
	{"Reshape", 1, factors, func(_ *domain, p params, xs []array) (array, bool) { return array{p.shape, xs[0].data}, true },
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.Reshape(vs[0], p.shape...)
		}},
	{"Flatten", 1, nil, func(_ *domain, p params, xs []array) (array, bool) {
		if len(xs[0].shape) == 0 || len(xs[0].data) == 0 {
			return array{}, false
		}
		return array{[]int{xs[0].shape[0], len(xs[0].data) / xs[0].shape[0]}, xs[0].data}, true
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		return nn.Flatten{}.Forward(t, vs[0])
	}},
	{"Transpose", 1, nil, func(_ *domain, p params, xs []array) (array, bool) {
		return xs[0].transposedIf(len(xs[0].shape) == 2), len(xs[0].shape) == 2
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		return t.Transpose(vs[0])
	}},
	{"Transpose of two dimensions", 1, twoAxes, func(_ *domain, p params, xs []array) (array, bool) {
		if len(p.axes) == 0 {
			return array{}, false
		}
		return xs[0].transposed(p.axes[0], p.axes[1]), true
	}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
		return t.Transpose(vs[0], p.axes...)
	}},
	{"Permute", 1, func(random choice, xs []array) params { return params{axes: permutation(random, len(xs[0].shape))} },
		func(_ *domain, p params, xs []array) (array, bool) { return xs[0].permuted(p.axes), true },
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.Permute(vs[0], p.axes...)
		}},
	{"Narrow", 1, ranges, func(_ *domain, p params, xs []array) (array, bool) {
		if len(xs[0].shape) == 0 {
			return array{}, false
		}
		before, after := margins(len(xs[0].shape), p.axes[0], -p.shape[0], p.shape[0]+p.shape[1]-xs[0].shape[p.axes[0]])
		return xs[0].padded(0, before, after), true
	}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
		return t.Narrow(vs[0], p.axes[0], p.shape[0], p.shape[1])
	}},
	{"Pad", 1, func(random choice, xs []array) params {
		if len(xs[0].shape) == 0 {
			return params{}
		}
		axis := random.IntN(len(xs[0].shape))
		return params{c: 0.5, axes: []int{axis}, shape: []int{random.IntN(3), random.IntN(3) - min(1, xs[0].shape[axis])}}
	}, func(_ *domain, p params, xs []array) (array, bool) {
		if len(xs[0].shape) == 0 {
			return array{}, false
		}
		before, after := margins(len(xs[0].shape), p.axes[0], p.shape[0], p.shape[1])
		return xs[0].padded(p.c, before, after), true
	}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
		before, after := margins(len(vs[0].Shape()), p.axes[0], p.shape[0], p.shape[1])
		return t.Pad(vs[0], p.c, before, after)
	}},
	{"Cat", 2, nil, func(_ *domain, _ params, xs []array) (array, bool) {
		axis := catAxis(xs[0].shape, xs[1].shape)
		return joined(axis, xs), axis >= 0
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		return t.Cat(catAxis(vs[0].Shape(), vs[1].Shape()), vs...)
	}},
	{"Stack", 2, nil, func(_ *domain, _ params, xs []array) (array, bool) {
		if !slices.Equal(xs[0].shape, xs[1].shape) {
			return array{}, false
		}
		front := []array{{slices.Insert(slices.Clone(xs[0].shape), 0, 1), xs[0].data}, {slices.Insert(slices.Clone(xs[1].shape), 0, 1), xs[1].data}}
		return joined(0, front), true
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable { return t.Stack(0, vs...) }},
	{"Softmax", 1, nil, func(_ *domain, p params, xs []array) (array, bool) { return xs[0].softmax(), true },
		func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable { return t.Softmax(vs[0]) }},
	{"MatMul", 2, flags, func(_ *domain, p params, xs []array) (array, bool) { return matmul(xs[0], xs[1], p.transA, p.transB) },
		func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
			return t.MatMul(vs[0], vs[1], tapetest.Transpose(p.transA, p.transB))
		}},
	{"AddBias", 2, nil, func(_ *domain, _ params, xs []array) (array, bool) {
		if last := len(xs[0].shape) - 1; last < 0 || !slices.Equal(xs[0].shape[last:], xs[1].shape) {
			return array{}, false
		}
		return zip(xs[0], xs[1], func(x, y float64) float64 { return x + y })
	}, func(t *autograd.Tape, _ params, vs []*autograd.Variable) *autograd.Variable {
		return t.AddBias(vs[0], vs[1])
	}},
	dense("Linear", true, false), dense("Linear without bias", false, false),
	dense("LinearReLU", true, true), dense("LinearReLU without bias", false, true),
	{"CrossEntropy", 1, func(random choice, xs []array) (p params) {
		if len(xs[0].shape) == 2 && len(xs[0].data) > 0 {
			for range xs[0].shape[0] {
				p.labels = append(p.labels, int32(random.IntN(xs[0].shape[1])))
			}
		}
		return p
	}, func(_ *domain, p params, xs []array) (array, bool) {
		if len(p.labels) == 0 {
			return array{}, false
		}
		return xs[0].crossEntropy(p.labels), true
	}, func(t *autograd.Tape, p params, vs []*autograd.Variable) *autograd.Variable {
		labels, err := tensor.FromSlice(t.Context(), t.Runtime(), p.labels)
		if err != nil {
			return t.Fail(fmt.Errorf("autograd: labels: %w", err))
		}
		defer autograd.FreeOn(t, labels) // the tape shares it
		return t.CrossEntropy(vs[0], labels)
	}},
}

// detach is the value that a tape of NoGrad computes, as a constant; the reference takes it from
// the run without differences.
const detach = "detach"
