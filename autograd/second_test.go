package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNoGradientsOfGradients: there is no double backward. The guide on the training loop has the
// errors, and the alternative: a gradient that is written as operations has a gradient.
func TestNoGradientsOfGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, w := tapetest.Upload(b, []float64{0.5, -1}, 1, 2), tapetest.Upload(b, []float64{1, 2, 0.3, -1, 0.5, 1}, 3, 2)
	out := tapetest.Upload(b, []float64{1, -2, 0.5}, 1, 3)

	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf := tape.Leaf(x)
	_, err := tape.Backward(tape.Sum(tape.Square(leaf)))
	require.NoError(t, err)
	next := autograd.NewTape(b.Ctx, b.RT)
	_, err = next.Backward(next.Sum(next.Square(next.Input(leaf.Grad()))))
	require.ErrorIs(t, err, autograd.ErrNoGrad, "a gradient is a constant for another tape")
	tape.Square(leaf)
	require.ErrorIs(t, tape.Err(), autograd.ErrSpent)
	require.Error(t, errors.Join(next.Close(), tape.Close()))

	// The penalty |d f/d x|² of f(x) = tanh(x wᵀ) outᵀ, whose gradient is ((1-tanh²) * out) w.
	penalty := func(w *tensor.Tensor) (value float64, grad []float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		weight := tape.Leaf(w)
		y := tape.Tanh(tape.MatMul(tape.Input(x), weight, tensor.TransB))
		slope := tape.MatMul(tape.Mul(tape.AddScalar(tape.Neg(tape.Square(y)), 1), tape.Input(out)), weight)
		loss, err := tape.Backward(tape.Sum(tape.Square(slope)))
		require.NoError(t, err)
		value, grad = tapetest.Read[float64](b, loss)[0], tapetest.Read[float64](b, weight.Grad())
		require.NoError(t, tape.Close())
		return value, grad
	}
	_, grad := penalty(w)
	at := tapetest.Read[float64](b, w)
	for i := range at {
		const h = 1e-5
		around := func(by float64) float64 {
			moved := append([]float64(nil), at...)
			moved[i] += by
			m := tapetest.Upload(b, moved, 3, 2)
			v, _ := penalty(m)
			require.NoError(t, m.Release())
			return v
		}
		require.InDelta(t, (around(h)-around(-h))/(2*h), grad[i], 1e-6)
	}
	require.NoError(t, errors.Join(x.Release(), w.Release(), out.Release()))
}
