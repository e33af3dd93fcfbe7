package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestFrame tests mistakes of programs, and the ends of frames.
func TestFrame(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		h := tape.AddScalar(tape.Input(x), 1)
		assert.Same(t, h, tape.Frame(func() *autograd.Variable { return h }), "made outside")
		var inner, kept *autograd.Variable
		y := tape.Frame(func() *autograd.Variable {
			inner = tape.Exp(h)
			kept = tape.Neg(inner).Keep()
			kept.Release()
			return tape.Frame(func() *autograd.Variable { return tape.Add(tape.Mul(h, inner), inner) })
		})
		require.NoError(t, tape.Err(), "read again inside, without a gradient too")
		assert.True(t, inner.Value().Released())
		assert.False(t, kept.Value().Released(), "Keep wins")
		assert.False(t, h.Value().Released(), "made outside")
		assert.InDeltaSlice(t, []float64{3 * 7.3890561, 4 * 20.0855369}, tapetest.Read[float64](b, y.Value()), 1e-6)
		assert.Equal(t, record, len(autograd.ValuesOf(tape)) > 0, "what Backward has to free")

		assert.PanicsWithValue(t, "inside", func() {
			tape.Frame(func() *autograd.Variable {
				inner = tape.Exp(h)
				panic("inside")
			})
		})
		assert.True(t, inner.Value().Released(), "after a panic")
		assert.Zero(t, autograd.ScopeOf(tape))
		tape.Exp(h)
		assert.Equal(t, !record, h.Value().Released(), "after its frames a tape of NoGrad frees as before")
		tape.Tanh(inner)
		require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
		assert.NotNil(t, tape.Frame(func() *autograd.Variable { return tape.Exp(tape.Fail(nil)) }), "after an error")
		require.Error(t, tape.Close())
		require.NotNil(t, tape.Frame(func() *autograd.Variable { return nil }))

		tape = tapetest.NewTape(b.Ctx, b.RT, record)
		require.NotNil(t, tape.Frame(func() *autograd.Variable { return nil }))
		require.EqualError(t, tape.Close(), "autograd: Frame: invalid argument: the function returned nil")
		tape = tapetest.NewTape(b.Ctx, b.RT, record)
		require.NotNil(t, tape.Frame(nil))
		require.EqualError(t, tape.Close(), "autograd: Frame: invalid argument: the function is nil")
	}
}

// TestBackwardInAFrame: Backward in a frame frees everything before the frame ends.
func TestBackwardInAFrame(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Square(tape.Param(p))
	loss := tape.Frame(func() *autograd.Variable {
		loss := tape.Sum(tape.Square(tape.Param(p)))
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		return loss
	})
	require.NoError(t, tape.Err())
	assert.InDelta(t, 5, loss.Item(), 0)
	require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.Ctx)))
}
