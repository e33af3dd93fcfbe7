package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// role is the kind of an operand on the tape.
type role int

const (
	constant role = iota // needs no gradient
	leaf
	earlier // needs one, and has one from an operation recorded before
	later   // and has some when the operation's backward step runs
)

// gradientsOf are the gradients of the operands that need one, and nil for the others: those of the
// sum of f's result times weights, plus 3 for each element of an operand whose role says so. It
// checks for leaks.
func gradientsOf(b *tapetest.Bench, f function, args [][]float64, roles []role) (grads [][]float64) {
	b.T.Helper()
	about := fmt.Sprintf("%s %v %v", f.name, f.shapes, roles)
	before, _ := b.RT.Live()
	tape := autograd.NewTape(b.Ctx, b.RT)
	vs, needs := make([]*autograd.Variable, len(args)), 0
	var around []*autograd.Variable
	for i, a := range args {
		x, err := tensor.FromSlice(b.Ctx, b.RT, a, f.shapes[i]...)
		require.NoError(b.T, err)
		if vs[i] = tape.Input(x); roles[i] != constant {
			vs[i] = tape.Leaf(x)
			needs++
		}
		require.NoError(b.T, x.Release())
	}
	triple := func(when role) {
		for i, v := range vs {
			if roles[i] == when {
				around = append(around, tape.Sum(tape.MulScalar(v, 3)))
			}
		}
	}
	triple(earlier)
	y := f.f(tape, vs)
	require.NoError(b.T, tape.Err(), about)
	n := tapetest.Elements(y.Shape())
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1 + float64(i%7)/3
	}
	loss := tape.Sum(tape.Mul(tape.Reshape(y, n), autograd.Upload(tape, weights)))
	triple(later)
	for _, a := range around {
		loss = tape.Add(loss, a)
	}
	_, err := tape.Backward(loss)
	require.NoError(b.T, err, about)
	now, _ := b.RT.Live()
	require.Equal(b.T, before+1+needs, now, "%s: more than the loss and %d gradients is left", about, needs)
	for i, v := range vs {
		grads = append(grads, nil)
		if roles[i] == constant {
			require.Nil(b.T, v.Grad(), about)
			continue
		}
		grads[i] = tapetest.Read[float64](b, v.Grad())
	}
	require.NoError(b.T, tape.Close())
	return grads
}

// Whichever operands of an operation need gradients, and whatever gradients they already have when
// its step runs, each gets its own, and nothing leaks. All gradients agree with differences.
func TestOperationsWithSomeGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 4))
	more := slices.Concat(recurrentFunctions(), otherFunctions(b))
	labels := tapetest.Upload(b, []int32{0})
	// The runtime keeps a word for invalid labels.
	b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return t.CrossEntropy(t.Reshape(vs[0], 1, 1), labels)
	}, []float64{1})
	for _, f := range more {
		checkSlopes(b, f, random)
	}
	for _, f := range slices.Concat(more, functions(), pictureFunctions()) {
		args := make([][]float64, len(f.shapes))
		for i, shape := range f.shapes {
			for range tapetest.Elements(shape) {
				args[i] = append(args[i], 0.5+random.Float64())
			}
		}
		compare := func(want [][]float64, roles []role) {
			for i, got := range gradientsOf(b, f, args, roles) {
				about := fmt.Sprintf("%s %v %v: operand %d", f.name, f.shapes, roles, i)
				if roles[i] == constant {
					continue
				}
				for k := range got {
					expected := want[i][k]
					if roles[i] != leaf {
						expected += 3
					}
					require.InDelta(t, expected, got[k], 1e-9*(1+max(expected, -expected)), about)
				}
			}
		}
		all := slices.Repeat([]role{leaf}, len(args))
		want := gradientsOf(b, f, args, all)
		compare(want, slices.Repeat([]role{earlier}, len(args)))
		compare(want, slices.Repeat([]role{later}, len(args)))
		for i := range args {
			if len(args) == 1 {
				break
			}
			for _, alone := range []role{leaf, later} {
				some := make([]role, len(args))
				some[i] = alone
				compare(want, some)
			}
			some := slices.Clone(all)
			some[i] = constant
			compare(want, some)
		}
	}
}

// An operation of variables that are inert, because there was an error, is inert, whatever its
// options.
func TestOperationsAfterAnError(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1})
	for _, f := range slices.Concat(functions(), recurrentFunctions(), pictureFunctions(), otherFunctions(b)) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		inert := tape.Reshape(tape.Input(x), 2)
		first := tape.Err()
		require.ErrorIs(t, first, tensor.ErrShape)
		y := f.f(tape, slices.Repeat([]*autograd.Variable{inert}, len(f.shapes)))
		require.Nil(t, y.Value(), f.name)
		require.Equal(t, first, tape.Close(), f.name)
	}
}

func recurrentFunctions() (all []function) {
	const steps, batch, inputs, n = 3, 2, 3, 2
	for kind, gates := range []int{tensor.RNNTanh: 1, tensor.RNNReLU: 1, tensor.LSTM: 4, tensor.GRU: 3} {
		kind := tensor.RecurrentKind(kind)
		for form := range 8 {
			reverse, states, biases := form&1 != 0, form&2 != 0, form&4 != 0
			shapes := [][]int{{steps, batch, inputs}, {gates * n, inputs}, {gates * n, n}}
			if biases {
				shapes = append(shapes, []int{gates * n}, []int{gates * n})
			}
			if states {
				if shapes = append(shapes, []int{batch, n}); kind == tensor.LSTM {
					shapes = append(shapes, []int{batch, n})
				}
			}
			run := func(t *autograd.Tape, v []*autograd.Variable, last bool) (y, hn, cn *autograd.Variable) {
				// Larger weights would saturate the gates.
				r := autograd.Recurrence{Kind: kind, Reverse: reverse, Last: last, X: t.AddScalar(v[0], -1), WeightIH: t.MulScalar(v[1], 0.3), WeightHH: t.MulScalar(v[2], 0.3)}
				rest := v[3:]
				if biases {
					r.BiasIH, r.BiasHH, rest = rest[0], rest[1], rest[2:]
				}
				if states {
					if r.H0 = rest[0]; kind == tensor.LSTM {
						r.C0 = rest[1]
					}
				}
				return t.Recurrent(r)
			}
			about := fmt.Sprintf("Recurrent %d, reverse %v, ", kind, reverse)
			all = append(all, function{about + "all and the last states", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
				y, hn, _ := run(t, v, true)
				return t.Mul(y, hn)
			}})
			if !states || !biases {
				continue
			}
			all = append(all, function{about + "all states", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
				y, _, _ := run(t, v, false)
				return y
			}}, function{about + "the last states", shapes, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
				_, hn, cn := run(t, v, true)
				if kind == tensor.LSTM {
					return t.Cat(0, hn, cn)
				}
				return hn
			}})
		}
	}
	return all
}

// An input or weight of a recurrence that needs no gradient skips its product.
func TestRecurrenceOfConstants(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	launches := map[string]int{}
	rt := b.Counting(launches)
	products := func(f function, constant int) int {
		tape := autograd.NewTape(b.Ctx, rt)
		var vs []*autograd.Variable
		for i, shape := range f.shapes {
			x, err := rt.Full(b.Ctx, 0.5, tensor.Float64, shape...)
			require.NoError(t, err)
			v := tape.Input(x)
			if i != constant {
				v = tape.Leaf(x)
			}
			vs = append(vs, v)
			require.NoError(t, x.Release())
		}
		loss := tape.Sum(f.f(tape, vs))
		clear(launches)
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		return launches["matmul"]
	}
	for _, f := range recurrentFunctions() {
		all := products(f, -1)
		for i := range 3 {
			require.Less(t, products(f, i), all, "%s: operand %d of %v", f.name, i, f.shapes)
		}
	}
}
