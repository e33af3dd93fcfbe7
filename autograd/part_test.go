package autograd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// A copy of a parameter in the compute dtype is freed if no gradient needs it and the program has
// not kept it. The next operation makes it again.
func TestCopiesOfParameters(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := master(b, []float32{1, 2})
	x := tapetest.Upload(b, []float32{1, 2})
	for _, record := range []bool{false, true} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		tape.SetComputeDtype(tensor.BFloat16)
		v := tape.Param(p)
		require.NotNil(t, v.Copy())
		require.Nil(t, tape.Input(x).Copy(), "of no parameter")
		require.Equal(t, !record, v.FreeCopy())
		y := tape.MulScalar(v, 3)
		require.NoError(t, tape.Err())
		require.Equal(t, []float32{3, 6}, floats(b, y.Value()))
		require.NotNil(t, v.Copy())
		v.Keep()
		require.Nil(t, v.Copy(), "kept")
		require.False(t, v.FreeCopy())
		require.NoError(t, tape.Close())
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	require.Nil(t, tape.Param(p).Copy(), "the tape computes in float32")
	require.False(t, tape.Param(p).FreeCopy())
	require.NoError(t, tape.Close())
	require.Nil(t, (*autograd.Variable)(nil).Copy())
}

// GradBytes is the size of the last gradient, or that of the value before the first one.
func TestGradBytes(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := master(b, []float32{1, 2})
	require.EqualValues(t, 8, p.GradBytes())
	tape := halfTape(b)
	_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), 2)))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.EqualValues(t, 4, p.GradBytes())
	require.NoError(t, p.ZeroGrad(b.Ctx))
	require.EqualValues(t, 4, p.GradBytes())
	require.Zero(t, (*autograd.Parameter)(nil).GradBytes())
}

// Each call of Random returns another stream of the tape's seed. In a capture the seed is in device
// memory, unless the program has set one.
func TestRandomOfAnOperation(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	var all []tensor.Random
	draw := func(tape *autograd.Tape) {
		tape.Func("Draw", nil, func(c *autograd.Call) (*tensor.Tensor, error) {
			for range 2 {
				all = append(all, c.Random())
			}
			return b.RT.Full(c.Context(), 1, tensor.Float32)
		}, nil)
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	tape.SetSeed(7)
	draw(tape)
	draw(tape)
	require.NoError(t, tape.Close())
	require.Equal(t, []tensor.Random{{Seed: 7}, {Seed: 7, Stream: 1}, {Seed: 7, Stream: 2}, {Seed: 7, Stream: 3}}, all)
	for _, given := range []bool{false, true} {
		all = nil
		g, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error {
			tape := autograd.NoGrad(ctx, b.RT)
			if given {
				tape.SetSeed(7)
			}
			draw(tape)
			return tape.Close()
		})
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Equal(t, given, all[0].Live == nil)
		require.Same(t, all[0].Live, all[1].Live)
		require.NoError(t, g.Close())
	}
}

// rerunHook lists the nodes that run a function again.
type rerunHook struct {
	autograd.NoHooks
	reruns map[string]bool
}

func (h *rerunHook) Saved(_ *autograd.Tape, n *autograd.Node) { h.reruns[n.Name()] = n.Reruns() }

func TestReruns(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	h := &rerunHook{reruns: map[string]bool{}}
	tape.Hook(h)
	v := tape.Leaf(x)
	y := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Square(v) })
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.Equal(t, map[string]bool{"Checkpoint": true, "Square": false, "Sum": false}, h.reruns)
}

// TestSplitInPartsOfNothing: one size is that of each part, and an empty dimension has one empty
// part.
func TestSplitInPartsOfNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := autograd.Upload(tape, []float64{1, 2, 3})
	require.Len(t, tape.Split(x, 0, 2), 2)
	require.NoError(t, tape.Err())
	tape.Split(x, 0, 0)
	require.ErrorIs(t, tape.Err(), tensor.ErrShape)
	require.Error(t, tape.Close())
}

// TestParametersOfATape: it lists all parameters that the tape has read, and a loop over them may
// end early.
func TestParametersOfATape(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Param(b.Parameter(1))
	tape.Param(b.Parameter(2))
	for _, most := range []int{1, 2} {
		n := 0
		for range tape.Parameters() {
			if n++; n == most {
				break
			}
		}
		require.Equal(t, most, n)
	}
	require.NoError(t, tape.Close())
}
