package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// losses are each loss of logits or numbers x and a target.
var losses = map[string]func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable{
	"CrossEntropy": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.CrossEntropy(x, y)
	},
	"MSELoss": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.MSELoss(x, y)
	},
	"L1Loss": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.L1Loss(x, y)
	},
	"HuberLoss": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.HuberLoss(x, y, 1)
	},
	"KLDivLoss": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.KLDivLoss(x, y)
	},
	"BCEWithLogits": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) *autograd.Variable {
		return t.BCEWithLogits(x, y)
	},
}

// TestTargets: a loss takes tensors, which the program may release at once, and variables, with the
// same result and gradient. A target that needs a gradient gets one.
func TestTargets(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	logits := tapetest.Upload(b, []float64{1, -2, 0.5, 3, 0.25, -1}, 3, 2)
	numbers, labels := []float64{0.9, 0.1, 0.6, 0.4, 0.3, 0.7}, []int64{1, 0, 1}
	run := func(name string, bring func(*autograd.Tape) (y autograd.Target, done func() error)) (loss float64, grad []float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(logits)
		y, done := bring(tape)
		l := losses[name](tape, x, y)
		require.NoError(t, done())
		_, err := tape.Backward(l)
		require.NoError(t, err, name)
		loss, grad = l.Item(), tapetest.Read[float64](b, x.Grad())
		if y, ok := y.(*autograd.Variable); ok && y.RequiresGrad() {
			for _, g := range tapetest.Read[float64](b, y.Grad()) {
				assert.NotZero(t, g, name)
			}
		}
		require.NoError(t, tape.Close())
		return loss, grad
	}
	for name := range losses {
		of := func(leaf bool) func(*autograd.Tape) (autograd.Target, func() error) {
			return func(tape *autograd.Tape) (autograd.Target, func() error) {
				x, err := tensor.FromSlice(b.Ctx, b.RT, numbers, 3, 2)
				require.NoError(t, err)
				if !leaf {
					return x, x.Release
				}
				return tape.Leaf(x), x.Release
			}
		}
		loss, grad := run(name, of(false))
		again, gradAgain := run(name, of(true))
		assert.InDelta(t, loss, again, 0, name)
		assert.Equal(t, grad, gradAgain, name)
	}
	loss, grad := run("CrossEntropy", func(*autograd.Tape) (autograd.Target, func() error) {
		y, err := tensor.FromSlice(b.Ctx, b.RT, labels)
		require.NoError(t, err)
		return y, y.Release
	})
	again, gradAgain := run("CrossEntropy", func(tape *autograd.Tape) (autograd.Target, func() error) {
		return autograd.Upload(tape, labels), func() error { return nil }
	})
	assert.InDelta(t, loss, again, 0)
	assert.Equal(t, grad, gradAgain)
}

type noTarget struct{}

func (noTarget) Shape() tensor.Shape { return nil }

// TestNoTargets: an invalid target is an error that names the loss.
func TestNoTargets(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	gone, err := tensor.FromSlice(b.Ctx, b.RT, []float64{1, 2}, 1, 2)
	require.NoError(t, err)
	require.NoError(t, gone.Release())
	other := autograd.NewTape(b.Ctx, b.RT)
	for name, f := range losses {
		for of, y := range map[string]autograd.Target{
			"nil": nil, "nil tensor": (*tensor.Tensor)(nil), "nil variable": (*autograd.Variable)(nil), "other type": noTarget{},
			"released": gone, "another tape's": other.Input(x),
		} {
			tape := autograd.NewTape(b.Ctx, b.RT)
			l := f(tape, tape.Leaf(x), y)
			require.ErrorContains(t, tape.Err(), name, of)
			assert.Nil(t, l.Value(), of)
			require.Error(t, tape.Close())
			require.NotPanics(t, func() { f(nil, nil, y) })
		}
	}
	require.NoError(t, other.Close())
}

// TestNoGradReadsLogitsAgain: a loss does not free its operands until Reset, so that metrics can
// read them.
func TestNoGradReadsLogitsAgain(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, -2, 0.5, 3}, 2, 2)
	y := tapetest.Upload(b, []float64{1, 0, 0, 1}, 2, 2)
	for name, f := range losses {
		before := b.Live()
		tape := autograd.NoGrad(b.Ctx, b.RT)
		logits := tape.MulScalar(tape.Input(x), 2)
		f(tape, logits, y)
		once := b.Live()
		own, err := tensor.FromSlice(b.Ctx, b.RT, []float64{1, 0, 0, 1}, 2, 2)
		require.NoError(t, err)
		f(tape, logits, own)
		require.NoError(t, own.Release())
		assert.Equal(t, once+1, b.Live(), "%s: the second loss, and no share of the target", name)
		assert.Equal(t, []float64{2, -4, 1, 6}, tapetest.Read[float64](b, logits.Value()), name)
		tape.Neg(logits)
		require.NoError(t, tape.Err(), name)
		assert.True(t, logits.Value().Released(), "%s: another operation frees it", name)
		require.NoError(t, tape.Close())
		assert.Equal(t, before, b.Live(), name)
	}
}
