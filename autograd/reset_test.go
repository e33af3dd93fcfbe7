package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

func numbers(n int) (xs []float32) {
	for i := range n {
		xs = append(xs, float32(i*31%101)/100)
	}
	return xs
}

// TestResetLabels: a step's allocations have the labels of its own context, also if that is the
// context of the step before, or has modules of its own.
func TestResetLabels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float32{1, 2}, 2)
	w, err := autograd.NewParameter(tapetest.Upload(b, []float32{3, 4}, 2))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	fourth := memcache.WithStep(b.Ctx, 4)
	for i, ctx := range []context.Context{
		b.Ctx, b.Ctx, memcache.WithStep(b.Ctx, 3), fourth, fourth, memcache.WithModule(memcache.WithStep(b.Ctx, 6), "net"), uncomparable{b.Ctx, nil}, uncomparable{fourth, nil}, b.Ctx,
	} {
		require.NoError(t, tape.Reset(ctx))
		want := memcache.LabelOf(ctx)
		join := func(module string) memcache.Label {
			l := want
			if l.Module != "" {
				module = l.Module + "." + module
			}
			l.Module, l.Category = module, memcache.CategoryActivation
			return l
		}
		y := tape.Module("a", func() *autograd.Variable { return tape.Mul(tape.Param(w), tape.Input(x)) }).Keep()
		z := tape.Module("b", func() *autograd.Variable { return tape.Sum(y) }).Keep()
		assert.Equal(t, join("a"), y.Value().Label(), "step %d", i)
		assert.Equal(t, join("b"), z.Value().Label(), "step %d", i)
		if i%2 == 1 { // for the rest of the step, and not for the next one
			tape.SetContext(memcache.WithStep(b.Ctx, 100))
		}
		_, err := tape.Backward(z)
		require.NoError(t, err)
		grad := want
		if i%2 == 1 {
			grad = memcache.Label{Step: 100}
		}
		assert.Equal(t, grad.Step, w.Grad().Label().Step, "step %d", i)
		assert.Equal(t, memcache.CategoryGradient, w.Grad().Label().Category)
		require.NoError(t, w.ZeroGrad(b.Ctx))
	}
	require.NoError(t, tape.Close())
}

// uncomparable is a context that Go can't compare.
type uncomparable struct {
	context.Context
	_ []int
}

// TestResetInsideOfTheTape is an error, and does not end the step.
func TestResetInsideOfTheTape(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	for name, run := range map[string]func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable{
		"Frame": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return tape.Frame(func() *autograd.Variable { reset(); return tape.Exp(v) })
		},
		"Layer": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return tape.Layer(nil, "", func() *autograd.Variable { reset(); return tape.Exp(v) })
		},
		"Module": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return tape.Module("m", func() *autograd.Variable { reset(); return tape.Exp(v) })
		},
		"Checkpoint": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return remat.Checkpoint(tape, func() *autograd.Variable { reset(); return tape.Exp(v) })
		},
		"forward": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return tape.Func("own", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) { reset(); return b.RT.Exp(c.Context(), c.Input(0)) }, nil)
		},
		"backward": func(tape *autograd.Tape, v *autograd.Variable, reset func()) *autograd.Variable {
			return tape.Func("own", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) { return b.RT.Exp(c.Context(), c.Input(0)) },
				func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
					reset()
					return c.Grads(b.RT.Share(c.Context(), g))
				})
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		for range 3 {
			called := false
			v := tape.Leaf(x)
			y := run(tape, v, func() {
				called = true
				require.ErrorIs(t, tape.Reset(b.Ctx), autograd.ErrInvalid, name)
				require.Equal(t, name == "backward", v.Value().Released(), name)
			})
			if name == "backward" {
				_, err := tape.Backward(tape.Sum(y))
				require.ErrorIs(t, err, autograd.ErrInvalid)
			}
			require.True(t, called, name)
			require.ErrorContains(t, tape.Err(), "Reset", name)
			require.ErrorIs(t, tape.Reset(b.Ctx), autograd.ErrInvalid, name)
			require.NoError(t, tape.Err(), name)
			require.Equal(t, int64(1), b.Live(), name)
		}
		require.NoError(t, tape.Close())
	}
	require.NoError(t, x.Release())
}

// TestResetWithoutARuntime is an error, as NewTape is.
func TestResetWithoutARuntime(t *testing.T) {
	tape := autograd.NewTape(context.Background(), nil)
	for range 3 {
		require.ErrorIs(t, tape.Reset(context.Background()), autograd.ErrInvalid)
		require.Nil(t, tape.Input(nil).Value())
	}
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
}

// TestGradientsLiveOverReset, as the same tensors, until the parameter releases them.
func TestGradientsLiveOverReset(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	w, err := autograd.NewParameter(tapetest.Upload(b, []float64{3, 4}, 2))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	seen := make(map[string]bool)
	for i := range 5 {
		for part := range 4 {
			_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(w), 2)))
			require.NoError(t, err)
			grad := w.Grad()
			require.NoError(t, tape.Reset(b.Ctx))
			require.Same(t, grad, w.Grad())
			n := float64(2 * (part + 1))
			require.Equal(t, []float64{n, n}, tapetest.Read[float64](b, grad))
			if i > 1 {
				seen[fmt.Sprintf("%p", grad)] = true
			}
		}
		require.NoError(t, w.ZeroGrad(b.Ctx))
		if i == 3 { // where it has new lists
			require.NoError(t, errors.Join(tape.Close(), tape.Reset(b.Ctx)))
		}
	}
	assert.LessOrEqual(t, len(seen), 2, "places of gradients that were released are used again")
	require.NoError(t, tape.Close())
	assert.Equal(t, int64(1), b.Live())
}

// TestResetAfterANilContext: a tape that was made with none is ready once Reset has one.
func TestResetAfterANilContext(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	var none context.Context // as a program may have by mistake
	tape := autograd.NewTape(none, b.RT)
	require.ErrorIs(t, tape.Reset(b.Ctx), autograd.ErrInvalid)
	tape.Exp(tape.Input(x)).Keep()
	require.NoError(t, tape.Err())
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// TestResetForgetsModules: the number of kept names is bounded if each step has new ones.
func TestResetForgetsModules(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	for i := range 2 * autograd.MostPaths {
		name := fmt.Sprint("step", i)
		y := tape.Module(name, func() *autograd.Variable { return tape.Exp(tape.Input(x)) })
		require.Equal(t, name, y.Value().Label().Module)
		require.NoError(t, tape.Reset(b.Ctx))
	}
	assert.LessOrEqual(t, autograd.ModulesOf(tape), autograd.MostPaths)
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}
