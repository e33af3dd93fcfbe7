package autograd_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// function is an operation, or several, with the shapes of its arguments.
type function struct {
	name   string
	shapes [][]int
	f      func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable
}

func functions() []function {
	unary := func(name string, f func(*autograd.Tape, *autograd.Variable) *autograd.Variable) function {
		return function{name, [][]int{{3, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return f(t, v[0]) }}
	}
	fs := []function{
		unary("Neg", (*autograd.Tape).Neg), unary("Exp", (*autograd.Tape).Exp), unary("Log", (*autograd.Tape).Log), unary("Tanh", (*autograd.Tape).Tanh),
		unary("Sigmoid", (*autograd.Tape).Sigmoid), unary("ReLU", (*autograd.Tape).ReLU), unary("Sqrt", (*autograd.Tape).Sqrt), unary("Square", (*autograd.Tape).Square),
		unary("Softmax", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softmax(x) }),
		unary("Transpose", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Transpose(x) }),
		unary("MulScalar", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.MulScalar(x, -2.5) }),
		unary("AddScalar", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.AddScalar(x, -2.5) }),
		unary("ReLU of both signs", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.ReLU(t.AddScalar(x, -1)) }),
		unary("PowScalar", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.PowScalar(x, 2.5) }),
		unary("Reshape", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Reshape(x, 2, -1) }),
		unary("Flatten", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return nn.Flatten{}.Forward(t, t.Reshape(x, 2, 3, 2))
		}),
		unary("Sum", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Sum(x) }),
		unary("Sum/0", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Sum(x, 0) }),
		unary("Mean", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mean(x) }),
		unary("Mean/-1", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mean(x, -1) }),
		unary("x+x", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(x, x) }),
		unary("x*x", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mul(x, x) }),
		unary("x-x*x", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Sub(x, t.Mul(x, x)) }),
		unary("x/(x+1)", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Div(x, t.AddScalar(x, 1)) }),
		unary("a fork", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			y := t.Exp(x)
			return t.Add(t.Add(t.Tanh(y), t.Reshape(y, 3, 4)), t.Mul(y, t.Sum(y)))
		}),
		unary("residual", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			h := t.Neg(x)
			return t.Add(t.ReLU(h), h)
		}),
		{"a gradient that two share, then one adds to", [][]int{{3, 4}, {3, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.Add(t.MulScalar(v[0], 2), t.Add(v[0], v[1]))
		}},
		{"a gradient that two share, then one masks", [][]int{{3, 5}, {3, 4}, {5, 4}, {5}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.Add(v[0], t.LinearReLU(t.AddScalar(v[1], -1), v[2], v[3]))
		}},
		{"AddBias", [][]int{{3, 4}, {4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.AddBias(v[0], v[1]) }},
		{"Linear", [][]int{{3, 4}, {5, 4}, {5}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Linear(v[0], v[1], v[2]) }},
		{"Linear without bias", [][]int{{3, 4}, {5, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Linear(v[0], v[1], nil) }},
		{"LinearReLU", [][]int{{3, 4}, {5, 4}, {5}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.LinearReLU(t.AddScalar(v[0], -1.5), v[1], v[2])
		}},
		{"LinearReLU without bias", [][]int{{3, 4}, {5, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.LinearReLU(t.AddScalar(v[0], -1.5), v[1], nil)
		}},
	}
	for _, shapes := range [][][]int{{{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{3, 1}, {2, 1, 4}}, {{1}, {3, 4}}} {
		fs = append(fs,
			function{"Add", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Add(v[0], v[1]) }},
			function{"Sub", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Sub(v[0], v[1]) }},
			function{"Mul", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Mul(v[0], v[1]) }},
			function{"Div", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Div(v[0], v[1]) }})
	}
	for form := range 4 {
		transA, transB := form&1 != 0, form&2 != 0
		a, b := []int{3, 4}, []int{4, 5}
		if transA {
			a = []int{4, 3}
		}
		if transB {
			b = []int{5, 4}
		}
		fs = append(fs, function{"MatMul", [][]int{a, b}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.MatMul(v[0], v[1], tapetest.Transpose(transA, transB))
		}})
	}
	return fs
}

// value returns the sum of f's result times weights, and its gradients if grads is true.
func value(b *tapetest.Bench, f function, args [][]float64, grads bool) (float64, [][]float64) {
	b.T.Helper()
	tape := autograd.NewTape(b.Ctx, b.RT)
	var leaves []*autograd.Variable
	for i, a := range args {
		x, err := tensor.FromSlice(b.Ctx, b.RT, a, f.shapes[i]...)
		require.NoError(b.T, err)
		leaves = append(leaves, tape.Leaf(x))
		require.NoError(b.T, x.Release(), "the tape shares it")
	}
	y := f.f(tape, leaves)
	require.NoError(b.T, tape.Err(), f.name)
	n := y.Value().Elements()
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1 + float64(i%7)/3
	}
	w, err := tensor.FromSlice(b.Ctx, b.RT, weights, n)
	require.NoError(b.T, err)
	loss := tape.Sum(tape.Mul(tape.Reshape(y, n), tape.Input(w)))
	require.NoError(b.T, w.Release())
	require.NoError(b.T, tape.Err())
	var gs [][]float64
	if grads {
		_, err = tape.Backward(loss)
		require.NoError(b.T, err, f.name)
		for i, l := range leaves {
			require.Equal(b.T, f.shapes[i], []int(l.Grad().Shape()), f.name)
			gs = append(gs, tapetest.Read[float64](b, l.Grad()))
		}
	}
	v, err := tensor.Item[float64](b.Ctx, loss.Value())
	require.NoError(b.T, err)
	require.NoError(b.T, tape.Close())
	return v, gs
}

func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range functions() {
		checkSlopes(b, f, random)
	}
}

// checkSlopes compares gradients with differences, at random numbers, and checks for leaks.
func checkSlopes(b *tapetest.Bench, f function, random *rand.Rand) {
	b.T.Helper()
	args := make([][]float64, len(f.shapes))
	for i, s := range f.shapes {
		n := 1
		for _, d := range s {
			n *= d
		}
		for range n {
			args[i] = append(args[i], 0.5+random.Float64())
		}
	}
	before := b.Bytes()
	_, grads := value(b, f, args, true)
	assert.Equal(b.T, before, b.Bytes(), "%s left memory behind", f.name)
	const h = 1e-5
	for i := range args {
		for j, v := range args[i] {
			args[i][j] = v + h
			above, _ := value(b, f, args, false)
			args[i][j] = v - h
			below, _ := value(b, f, args, false)
			args[i][j] = v
			slope := (above - below) / (2 * h)
			assert.InDelta(b.T, slope, grads[i][j], 1e-7*(1+max(slope, -slope)), "%s %v: argument %d, element %d", f.name, f.shapes, i, j)
		}
	}
}

// TestTheGradientOfAPowerAtZero: it is PyTorch's, and not NaN for the powers 0 and 1.
func TestTheGradientOfAPowerAtZero(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for power, want := range map[float64][]float64{0: {0, 0}, 1: {1, 1}, 2: {0, 4}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(tapetest.Upload(b, []float64{0, 2}))
		_, err := tape.Backward(tape.Sum(tape.PowScalar(x, power)))
		require.NoError(t, err)
		assert.Equal(t, want, tapetest.Read[float64](b, x.Grad()), "power %v", power)
		require.NoError(t, tape.Close())
	}
}

func TestCrossEntropyGradientAgainstFiniteDifferences(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	labels := tapetest.Upload(b, []int32{2, 0, 1})
	for name, logits := range map[string]func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable{
		"of a leaf":                     func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x },
		"of what nobody else needs":     func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.MulScalar(x, 0.5) },
		"of what Tanh's gradient needs": func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Tanh(x) },
	} {
		t.Run(name, func(t *testing.T) { crossEntropyGradient(t, b, labels, logits) })
	}
}

func crossEntropyGradient(t *testing.T, b *tapetest.Bench, labels *tensor.Tensor, logits func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable) {
	f := function{"CrossEntropy", [][]int{{3, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.MulScalar(t.CrossEntropy(logits(t, v[0]), labels), 3)
	}}
	args := [][]float64{{1, -2, 3, 0.5, 0, 0.1, 0.2, 0.3, 5, 4, 3, 2}}
	_, grads := value(b, f, args, true)
	const h = 1e-5
	for j, v := range args[0] {
		args[0][j] = v + h
		above, _ := value(b, f, args, false)
		args[0][j] = v - h
		below, _ := value(b, f, args, false)
		args[0][j] = v
		assert.InDelta(t, (above-below)/(2*h), grads[0][j], 1e-8)
	}
}

// The mean of no elements is NaN, and its gradient has no elements.
func TestGradientOfTheMeanOfNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, err := b.RT.Zeros(b.Ctx, tensor.Float64, 0, 3)
	require.NoError(t, err)
	for _, axes := range [][]int{nil, {0}, {1}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		v := tape.Leaf(x)
		_, err := tape.Backward(tape.Sum(tape.Mean(v, axes...)))
		require.NoError(t, err)
		require.Equal(t, tensor.Shape{0, 3}, v.Grad().Shape())
		require.NoError(t, tape.Close())
	}
	require.NoError(t, x.Release())
}
