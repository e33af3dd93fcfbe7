package nn_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// copied is a model with buffers of two dtypes and a tied weight, and a step of its training.
type copied struct {
	b     *tapetest.Bench
	in    *nn.Initializer
	Model nn.Sequential
	step  func(context.Context) error
}

func newCopied(t *testing.T) *copied {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	square := in.Linear(3, 3)
	c := &copied{b: b, in: in, Model: nn.Sequential{square, in.BatchNorm(3), square}}
	x, y := in.Tensor([]float64{1, 2, 3, 4, 5, 7, 2, 2, 1}, 3, 3), in.Labels([]int{0, 1, 2}, 3)
	sgd := nn.Own(in, optim.NewSGD(c.Model.Parameters(), optim.SGDConfig{LR: new(0.5)}))
	c.step = func(context.Context) error {
		for _, tape := range in.Steps(1) {
			optim.Minimize(tape, tape.CrossEntropy(c.Model.Forward(tape, tape.Input(x)), y), sgd)
		}
		return in.Err()
	}
	return c
}

// values are those of a model's state, or of a copy.
func (c *copied) values(model any) (all []float64) {
	state, err := nn.StateDict(model)
	require.NoError(c.b.T, err)
	for _, s := range state {
		if s.Dtype() == tensor.Int64 {
			all = append(all, float64(tapetest.Read[int64](c.b, s.Tensor)[0]))
			continue
		}
		for _, v := range tapetest.Read[float32](c.b, s.Tensor) {
			all = append(all, float64(v))
		}
	}
	return all
}

// TestStateCopy saves, swaps and restores parameters and buffers, each tensor once, in memory of
// its own until Close.
func TestStateCopy(t *testing.T) {
	c := newCopied(t)
	ctx := c.b.Ctx
	first := c.values(c.Model)
	live := c.b.Live()
	s := nn.NewStateCopy(ctx, c.Model)
	require.NoError(t, s.Err())
	require.Equal(t, live+7, c.b.Live(), "weight, bias, and those of the norm with its three buffers")
	require.NoError(t, c.step(ctx))
	second := c.values(c.Model)
	require.NotEqual(t, first, second)
	require.NoError(t, s.Swap(ctx))
	require.Equal(t, first, c.values(c.Model))
	require.NoError(t, s.Swap(ctx))
	require.Equal(t, second, c.values(c.Model))
	require.NoError(t, s.Restore(ctx))
	require.Equal(t, first, c.values(c.Model))
	require.NoError(t, c.step(ctx))
	require.Equal(t, second, c.values(c.Model), "the training goes on from the copy")
	require.NoError(t, s.Save(ctx))
	require.NoError(t, errors.Join(c.step(ctx), s.Restore(ctx)))
	require.Equal(t, second, c.values(c.Model))

	tape := autograd.NewTape(ctx, c.b.RT)
	loss := tape.Sum(c.Model.Forward(tape, tape.Input(c.in.Tensor(make([]float64, 6), 2, 3))))
	require.NoError(t, s.Swap(ctx))
	_, err := tape.Backward(loss)
	require.ErrorIs(t, err, autograd.ErrStale)
	require.Error(t, tape.Close())
	require.NoError(t, errors.Join(s.Close(), s.Close()))
	require.ErrorIs(t, s.Restore(ctx), tensor.ErrReleased)
	require.NoError(t, c.in.Close())
}

// TestAverageOfGraphs: each replay of a captured step with an average equals an eager step. Tensors
// of whole numbers are copied.
func TestAverageOfGraphs(t *testing.T) {
	var all [][]float64
	for _, captured := range []bool{false, true} {
		c := newCopied(t)
		ema := nn.Own(c.in, nn.NewStateCopy(c.b.Ctx, c.Model))
		step := func(ctx context.Context) error { return errors.Join(c.step(ctx), ema.Average(ctx, 0.75)) }
		require.NoError(t, step(c.b.Ctx))
		if captured {
			graph, err := c.b.RT.Capture(c.b.Ctx, step)
			require.NoError(t, err)
			step = graph.Replay
			defer graph.Close()
		}
		for range 3 {
			require.NoError(t, step(c.b.Ctx))
		}
		state := c.values(&struct{ Ema *nn.StateCopy }{ema})
		require.Equal(t, 4.0, state[len(state)-1], "batches")
		all = append(all, append(state, c.values(c.Model)...))
		require.NoError(t, c.in.Close())
	}
	require.Equal(t, all[0], all[1])
}

// TestStateCopyInAFile: a file of a struct with a model and its copy has both, and an optimiser of
// it has only the model's parameters.
func TestStateCopyInAFile(t *testing.T) {
	c := newCopied(t)
	ctx, path := c.b.Ctx, filepath.Join(t.TempDir(), "m")
	both := &struct {
		Model nn.Sequential
		Ema   *nn.StateCopy
	}{c.Model, nn.Own(c.in, nn.NewStateCopy(ctx, c.Model))}
	require.NoError(t, errors.Join(c.step(ctx), both.Ema.Average(ctx, 0.5)))
	require.Len(t, nn.ParametersOf(both), len(c.Model.Parameters()))
	want := c.values(both)
	require.Greater(t, len(want), len(c.values(c.Model)))
	require.NoError(t, nn.SaveModel(ctx, both, path))
	require.NoError(t, errors.Join(c.step(ctx), both.Ema.Average(ctx, 0.5)))
	require.NotEqual(t, want, c.values(both))
	require.NoError(t, nn.LoadModel(ctx, both, path))
	require.Equal(t, want, c.values(both))
	require.NoError(t, c.in.Close())
}

// TestStateCopyRefuses invalid decays, models and contexts.
func TestStateCopyRefuses(t *testing.T) {
	c := newCopied(t)
	ctx := c.b.Ctx
	s := nn.NewStateCopy(ctx, c.Model)
	for _, decay := range []float64{-0.1, 1.1, math.NaN()} {
		require.ErrorIs(t, s.Average(ctx, decay), autograd.ErrInvalid)
	}
	var none context.Context
	for _, f := range []func(context.Context) error{s.Save, s.Restore, s.Swap, func(ctx context.Context) error { return s.Average(ctx, 1) }} {
		require.ErrorIs(t, f(none), autograd.ErrInvalid)
	}
	for _, bad := range []*nn.StateCopy{nn.NewStateCopy(none, c.Model), nn.NewStateCopy(ctx, nil)} {
		require.Error(t, bad.Err())
		for _, f := range []func(context.Context) error{bad.Save, bad.Restore, bad.Swap, func(ctx context.Context) error { return bad.Average(ctx, 1) }} {
			require.ErrorIs(t, f(ctx), bad.Err())
		}
		require.NoError(t, bad.Close())
	}
	empty := nn.NewStateCopy(ctx, nn.ReLU{})
	require.NoError(t, errors.Join(empty.Err(), empty.Save(ctx), empty.Average(ctx, 0.5), empty.Swap(ctx), empty.Close()))
	off := c.b.Offloader(tensor.OffloadConfig{})
	require.NoError(t, offload.Parameters(ctx, c.Model.Parameters(), off))
	live := c.b.Live()
	away := nn.NewStateCopy(ctx, c.Model)
	require.ErrorContains(t, away.Err(), "0.weight")
	t.Log(away.Err())
	require.Equal(t, live, c.b.Live())
	require.NoError(t, offload.Parameters(ctx, c.Model.Parameters(), nil))
	require.NoError(t, errors.Join(s.Close(), c.in.Close()))
}
