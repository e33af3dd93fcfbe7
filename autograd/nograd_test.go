package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNoGradFreesIntermediates: in a chain of operations two values are alive at a time.
func TestNoGradFreesIntermediates(t *testing.T) {
	const mib = 1 << 20
	b := tapetest.Open(t, 64*mib)
	x, err := b.RT.Zeros(b.Ctx, tensor.Float32, mib/4)
	require.NoError(t, err)
	b.Cache.ResetPeakStats()
	tape := autograd.NoGrad(b.Ctx, b.RT)
	h := tape.Input(x)
	for range 50 {
		h = tape.AddScalar(h, 1)
	}
	require.NoError(t, tape.Err())
	assert.LessOrEqual(t, b.Cache.MaxMemoryAllocated()-b.OwnBytes, int64(3*mib), "the input, an operand, a result")
	assert.Equal(t, int64(2*mib), b.Bytes(), "the input and the result")
	assert.Equal(t, float32(50), tapetest.Read[float32](b, h.Value())[mib/4-1])
	assert.Empty(t, autograd.ValuesOf(tape), "nothing is kept for Backward")
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// TestNoGradOfEveryOperation: each frees the operands that operations made, and nothing else.
func TestNoGradOfEveryOperation(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, row := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2), tapetest.Upload(b, []float64{5, 6})
	labels := tapetest.Upload(b, []int32{1, 0})
	weight, err := autograd.NewParameter(tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2))
	require.NoError(t, err)
	for name, f := range map[string]func(t *autograd.Tape, a, c, r *autograd.Variable) *autograd.Variable{
		"Add":    func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Add(a, c) },
		"Sub":    func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Sub(a, c) },
		"Mul":    func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Mul(a, c) },
		"Div":    func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Div(a, c) },
		"itself": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Mul(t.Add(a, a), c) },
		"MatMul": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable {
			return t.MatMul(a, c, tensor.TransB)
		},
		"AddBias": func(t *autograd.Tape, a, c, r *autograd.Variable) *autograd.Variable {
			return t.Add(c, t.AddBias(a, r))
		},
		"Linear":  func(t *autograd.Tape, a, c, r *autograd.Variable) *autograd.Variable { return t.Linear(a, c, r) },
		"no bias": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.LinearReLU(a, c, nil) },
		"parameter": func(t *autograd.Tape, a, c, r *autograd.Variable) *autograd.Variable {
			return t.Add(c, t.LinearReLU(a, t.Param(weight), r))
		},
		"Reshape": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable {
			return t.Sub(c, t.Reshape(a, 2, 2))
		},
		"Transpose": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Sub(c, t.Transpose(a)) },
		"Sum":       func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Add(c, t.Sum(a, 1)) },
		"Mean":      func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Add(c, t.Mean(a, 0)) },
		"Softmax":   func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Add(c, t.Softmax(a)) },
		"PowScalar": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable {
			return t.Add(c, t.PowScalar(a, 2))
		},
		"Square": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable { return t.Add(c, t.Square(a)) },
		"entropy": func(t *autograd.Tape, a, c, _ *autograd.Variable) *autograd.Variable {
			return t.Add(c, t.CrossEntropy(a, labels))
		},
	} {
		run := func(tape *autograd.Tape) []float64 {
			before := b.Live()
			in, r := tape.Input(x), tape.Input(row)
			a, c, bias := tape.AddScalar(in, 1), tape.MulScalar(in, 3), tape.AddScalar(r, 1)
			y := f(tape, a, c, bias)
			require.NoError(t, tape.Err(), name)
			if !autograd.Recording(tape) {
				assert.Equal(t, name != "entropy", a.Value().Released(), "%s: an operand, unless it is a loss's", name)
				assert.True(t, c.Value().Released(), "%s: an operand", name)
				assert.False(t, in.Value().Released(), "%s: an input", name)
				own := int64(1) // the result
				if !bias.Value().Released() {
					own++
				}
				if name == "entropy" {
					own += 2 // the word for faults, and the operand of the loss
				}
				assert.LessOrEqual(t, b.Live()-before, own, "%s: nothing but the result and what was not read", name)
			}
			value := tapetest.Read[float64](b, y.Value())
			require.NoError(t, tape.Close(), name)
			return value
		}
		assert.Equal(t, run(autograd.NewTape(b.Ctx, b.RT)), run(autograd.NoGrad(b.Ctx, b.RT)), name)
	}
	assert.False(t, weight.Value().Released())
}

// TestNoGradReadsKeptValuesAgain; a second reading of another value is an error that says so.
func TestNoGradReadsKeptValuesAgain(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	tape := autograd.NoGrad(b.Ctx, b.RT)
	h := tape.AddScalar(tape.Input(x), 1).Keep()
	y := tape.Add(tape.Square(h), tape.Exp(h))
	require.NoError(t, tape.Err())
	assert.InDeltaSlice(t, []float64{4 + 7.389056, 9 + 20.085537}, tapetest.Read[float64](b, y.Value()), 1e-6)
	h.Release()
	require.False(t, h.Value().Released(), "until Close")
	require.NoError(t, tape.Close())
	require.True(t, h.Value().Released())

	tape = autograd.NoGrad(b.Ctx, b.RT)
	h = tape.AddScalar(tape.Input(x), 1)
	tape.Square(h)
	tape.Exp(h)
	require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
	require.ErrorContains(t, tape.Err(), "autograd: Exp: ")
	require.ErrorContains(t, tape.Err(), "operand 1 was freed when Square had read it: on a tape of NoGrad call Keep")
	require.Error(t, tape.Close())
}

// TestLayersLeaveTheirArgument to the caller on every tape, and free their intermediate values.
func TestLayersLeaveTheirArgument(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	linear, ok := b.MLP(tensor.Float64, 2, 2)[1].(*nn.Linear)
	require.True(t, ok)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	for name, layer := range map[string]nn.Layer{
		"Linear": linear, "ReLU": nn.ReLU{}, "Flatten": nn.Flatten{}, "Sequential": nn.Sequential{nn.Flatten{}, linear, nn.ReLU{}, linear, nn.ReLU{}},
		"nothing": nn.Sequential{}, "nested": nn.Sequential{nn.Sequential{nn.Sequential{}, linear}, linear},
	} {
		for _, record := range []bool{true, false} {
			before := b.Live()
			tape := tapetest.NewTape(b.Ctx, b.RT, record)
			h := tape.AddScalar(tape.Input(x), 1)
			y := layer.Forward(tape, h)
			require.NoError(t, tape.Err(), name)
			require.False(t, h.Value().Released(), name)
			require.Zero(t, autograd.ScopeOf(tape), name)
			tape.Add(tape.Exp(h.Keep()), y)
			require.NoError(t, tape.Err(), name)
			if !record && name != "nothing" {
				assert.LessOrEqual(t, b.Live()-before, int64(2), "%s: its argument and the sum", name)
			}
			require.NoError(t, tape.Close(), name)
		}
	}
}

// TestKeepWinsOverRelease on every tape; after Release it is an error.
func TestKeepWinsOverRelease(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		h := tape.AddScalar(tape.Leaf(x), 1)
		h.Keep()
		h.Release()
		y := tape.Square(h)
		require.NoError(t, tape.Err(), "record %v", record)
		assert.Equal(t, []float64{4, 9}, tapetest.Read[float64](b, y.Value()))
		if record {
			_, err := tape.Backward(tape.Sum(y))
			require.NoError(t, err)
		}
		assert.Equal(t, []float64{2, 3}, tapetest.Read[float64](b, h.Value()))
		require.NoError(t, tape.Close())

		tape = tapetest.NewTape(b.Ctx, b.RT, record)
		h = tape.AddScalar(tape.Leaf(x), 1)
		h.Release()
		h.Keep()
		require.ErrorIs(t, tape.Err(), tensor.ErrReleased, "record %v", record)
		require.ErrorContains(t, tape.Err(), "autograd: Keep: ")
		require.Error(t, tape.Close())
	}
}

// TestReleasedValuesCanNotBeRead, whether the backward pass still needs them or not.
func TestReleasedValuesCanNotBeRead(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	for _, record := range []bool{true, false} {
		for _, saved := range []bool{true, false} {
			tape := tapetest.NewTape(b.Ctx, b.RT, record)
			h := tape.AddScalar(tape.Leaf(x), 1)
			if saved {
				tape.Square(h)
			}
			h.Release()
			tape.Add(tape.Input(x), h)
			require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
			require.ErrorContains(t, tape.Err(), "operand 2")
			require.Error(t, tape.Close())
		}
	}
}

func TestNilVariables(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	var none *autograd.Variable
	none.Release()
	assert.Nil(t, none.Keep())
	assert.Nil(t, none.Value())
	assert.Nil(t, none.Shape())
	assert.Nil(t, none.Grad())
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Mul(tape.Leaf(tapetest.Upload(b, []float64{1})), none)
	require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
	require.NotErrorIs(t, tape.Err(), autograd.ErrTape)
	require.EqualError(t, tape.Close(), "autograd: Mul: invalid argument: operand 2 is nil")
	tape = autograd.NoGrad(b.Ctx, b.RT)
	nn.Sequential{nn.ReLU{}}.Forward(tape, nil)
	require.EqualError(t, tape.Close(), "autograd: ReLU: invalid argument: operand 1 is nil")
}
