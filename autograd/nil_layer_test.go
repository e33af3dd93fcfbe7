package autograd_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNilInCalls: what the functions of an operation save and return may be nil.
func TestNilInCalls(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, forward := range map[string]func(*autograd.Call) (*tensor.Tensor, error){
		"no result": func(*autograd.Call) (*tensor.Tensor, error) { return nil, nil },
		"no gradients": func(c *autograd.Call) (*tensor.Tensor, error) {
			c.Save(nil, c.Input(0))
			c.Save()
			return b.RT.Share(c.Context(), c.Input(0))
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(tapetest.Upload(b, []float64{1}))
		_, err := tape.Backward(tape.Func(name, []*autograd.Variable{x}, forward, func(c *autograd.Call, _ *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(nil, nil) }))
		require.Equal(t, name == "no result", errors.Is(err, autograd.ErrInvalid), "%v", err)
		require.Nil(t, x.Grad())
		_ = tape.Close()
	}
}

// TestLayersOfNil refuse in Forward, on the tape.
func TestLayersOfNil(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	off, err := tensor.NewOffloader(b.RT, tensor.OffloadConfig{})
	require.NoError(t, err)
	for name, l := range map[string]autograd.Layer{
		"LayerOf": autograd.LayerOf(nil), "Checkpointed": autograd.Checkpointed(nil), "Offloaded": autograd.Offloaded(nil, off), "no offloader": autograd.Offloaded(autograd.ReLU{}, nil), "CheckpointPlan": new(autograd.CheckpointPlan).Layer("x", nil),
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		l.Forward(tape, tape.Leaf(tapetest.Upload(b, []float64{1})))
		require.ErrorIs(t, tape.Close(), device.ErrInvalid, name)
		require.Empty(t, l.Parameters(), name)
		require.Empty(t, l.(autograd.Buffered).Buffers(), name)
	}
	require.NoError(t, off.Close())
}

// TestLayersWithoutWeights are errors of the operation that reads them.
func TestLayersWithoutWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		layer autograd.Layer
		want  string
	}{
		"Linear":    {&autograd.Linear{}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"ReLU":      {autograd.Sequential{&autograd.Linear{}, autograd.ReLU{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"Conv2d":    {&autograd.Convolution{}, "autograd: Conv2d: invalid argument: operand 2 is nil"},
		"ConvT":     {&autograd.Convolution{Transposed: true}, "autograd: ConvTranspose2d: invalid argument: operand 2 is nil"},
		"Embedding": {&autograd.Embedding{}, "autograd: Embedding: invalid argument: operand 1 is nil"},
		"GRU":       {&autograd.GRU{Kind: tensor.GRU, Cells: make([]autograd.RecurrentCell, 1)}, "autograd: GRU: invalid argument: operand 2 is nil"},
		"attention": {&autograd.MultiHeadAttention{InWeight: b.Parameter(6, 2), Heads: 1, Out: &autograd.Linear{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.layer.Forward(tape, tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 1, 2)))
		require.EqualError(t, tape.Close(), c.want, name)
	}
}

// TestOptimizersOfNil: a nil pointer is no optimiser, and one that could not be made takes no
// parameters.
func TestOptimizersOfNil(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	for _, opt := range []autograd.Optimizer{nil, (*autograd.SGD)(nil), (*autograd.Adam)(nil), (*autograd.RMSprop)(nil), (*autograd.Adagrad)(nil)} {
		for name, minimize := range tapetest.Minimizers {
			tape := autograd.NewTape(b.Ctx, b.RT)
			minimize(tape, tape.Sum(tape.Param(p)), opt)
			require.ErrorIs(t, tape.Close(), device.ErrInvalid, "%s of a %T", name, opt)
		}
		_, err := autograd.NewScheduler(opt, autograd.ConstantLR{})
		require.ErrorIs(t, err, device.ErrInvalid)
		require.ErrorIs(t, autograd.OffloadState(b.Ctx, opt, nil, 0), device.ErrInvalid)
		if opt != nil {
			require.ErrorIs(t, autograd.Checkpoint{Optimizer: opt}.Save(b.Ctx, filepath.Join(t.TempDir(), "c")), device.ErrInvalid)
		}
	}
	in := autograd.Init(b.Ctx, nil)
	opt := autograd.Own(in, autograd.NewAdam(nil, autograd.AdamConfig{}))
	require.ErrorIs(t, opt.AddGroup(autograd.Parameters{{"p", p}}, autograd.AdamConfig{}), device.ErrInvalid)
	require.ErrorIs(t, opt.Step(b.Ctx), device.ErrInvalid)
	require.ErrorIs(t, opt.Prepare(b.Ctx), device.ErrInvalid)
	require.NoError(t, errors.Join(opt.ZeroGrad(b.Ctx), opt.Close()))
	var none context.Context
	require.ErrorIs(t, opt.Step(none), device.ErrInvalid)
	require.Error(t, in.Close())
}
