package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// Calls for backward steps are refused elsewhere, and with variables of another tape.
func TestCallsOfBackwardSteps(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	other := autograd.NewTape(b.Ctx, b.RT)
	foreign := other.Leaf(x)
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	var none *autograd.Tape
	require.ErrorIs(t, none.Give(v, x), autograd.ErrInvalid)
	require.ErrorIs(t, tape.Give(v, x), autograd.ErrInvalid, "outside of Backward")
	require.NoError(t, tape.Err())
	y := tape.Func("Steps", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) {
		return b.RT.Share(c.Context(), c.Input(0))
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		require.ErrorIs(t, tape.Give(nil, g), autograd.ErrInvalid)
		require.ErrorIs(t, tape.Give(foreign, g), autograd.ErrInvalid)
		require.ErrorIs(t, tape.Give(v, nil), autograd.ErrInvalid)
		own, err := b.RT.Share(c.Context(), g)
		require.NoError(t, err)
		require.NoError(t, tape.Give(v, own))
		return nil, nil
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.Equal(t, []float64{1, 1}, tapetest.Read[float64](b, v.Grad()))
	require.NoError(t, tape.Close())

	for name, in := range map[string]bool{"in a step": true, "outside": false} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		rerun := func() { tape.Rerun(tape.Mode(), nil) }
		y := tape.Func("Rerun", []*autograd.Variable{tape.Leaf(x)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			return b.RT.Share(c.Context(), c.Input(0))
		}, func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error) {
			rerun()
			return nil, nil
		})
		if in {
			_, err := tape.Backward(tape.Sum(y))
			require.ErrorIs(t, err, autograd.ErrInvalid, name)
		} else {
			tape.Rerun(tape.Mode(), func() *autograd.Variable { t.Error("called"); return y })
		}
		require.ErrorContains(t, tape.Close(), "autograd: Rerun: ", name)
	}
	require.NoError(t, other.Close())
}

// A parameter that has a gradient becomes final once, after the last step that reads it, even if
// that step gives none. After an error it does not.
func TestFinalWithoutAGradient(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(2)
	share := func(c *autograd.Call) (*tensor.Tensor, error) { return b.RT.Share(c.Context(), c.Input(0)) }
	wrong := errors.New("on purpose")
	for _, fails := range []bool{false, true} {
		for uses := range 3 {
			tape := autograd.NewTape(b.Ctx, b.RT)
			v := tape.Param(p)
			h := &testHook{names: map[*autograd.Variable]string{v: "p"}}
			tape.Hook(h)
			y := tape.Func("Silent", []*autograd.Variable{v}, share, func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error) {
				if fails {
					return nil, wrong
				}
				return nil, nil
			})
			for range uses {
				y = tape.Add(y, v)
			}
			_, err := tape.Backward(tape.Sum(y))
			finals := 0
			for _, e := range h.events {
				if e == "final p" {
					finals++
				}
			}
			if fails {
				require.ErrorIs(t, err, wrong)
				require.Zero(t, finals, "%d other uses", uses)
				require.ErrorIs(t, tape.Close(), wrong)
			} else {
				require.NoError(t, err)
				require.Equal(t, min(uses, 1), finals, "%d other uses", uses)
				require.NoError(t, tape.Close())
			}
			require.NoError(t, p.ZeroGrad(b.Ctx))
		}
	}
}

// A value waits from the time when only backward steps will read it, until they have run.
func TestWaits(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	saved, unsaved := tape.AddScalar(v, 1), tape.AddScalar(v, 2)
	y := tape.Add(tape.Square(saved), unsaved)
	require.False(t, (*autograd.Variable)(nil).Waits())
	require.False(t, saved.Waits(), "the program may read it")
	saved.Release()
	unsaved.Release()
	require.True(t, saved.Waits(), "Square saved it")
	require.False(t, unsaved.Waits(), "it is freed")
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.False(t, saved.Waits())
	require.NoError(t, tape.Close())
}
