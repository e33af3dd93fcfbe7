package autograd

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNilInCalls: what the functions of an operation save and return may be nil.
func TestNilInCalls(t *testing.T) {
	b := open(t, 64<<20)
	for name, forward := range map[string]func(*Call) (*tensor.Tensor, error){
		"no result": func(*Call) (*tensor.Tensor, error) { return nil, nil },
		"no gradients": func(c *Call) (*tensor.Tensor, error) {
			c.Save(nil, c.Input(0))
			c.Save()
			return b.rt.Share(c.Context(), c.Input(0))
		},
	} {
		tape := NewTape(b.ctx, b.rt)
		x := tape.Leaf(upload(b, []float64{1}))
		_, err := tape.Backward(tape.Func(name, []*Variable{x}, forward, func(c *Call, _ *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(nil, nil) }))
		require.Equal(t, name == "no result", errors.Is(err, ErrInvalid), "%v", err)
		require.Nil(t, x.Grad())
		_ = tape.Close()
	}
}

// TestLayersOfNil refuse in Forward, on the tape.
func TestLayersOfNil(t *testing.T) {
	b := open(t, 64<<20)
	off, err := tensor.NewOffloader(b.rt, tensor.OffloadConfig{})
	require.NoError(t, err)
	for name, l := range map[string]Layer{
		"LayerOf": LayerOf(nil), "Checkpointed": Checkpointed(nil), "Offloaded": Offloaded(nil, off), "no offloader": Offloaded(ReLU{}, nil), "CheckpointPlan": new(CheckpointPlan).Layer("x", nil),
	} {
		tape := NewTape(b.ctx, b.rt)
		l.Forward(tape, tape.Leaf(upload(b, []float64{1})))
		require.ErrorIs(t, tape.Close(), device.ErrInvalid, name)
		require.Empty(t, l.Parameters(), name)
		require.Empty(t, l.(Buffered).Buffers(), name)
	}
	require.NoError(t, off.Close())
}

// TestLayersWithoutWeights are errors of the operation that reads them.
func TestLayersWithoutWeights(t *testing.T) {
	b := open(t, 64<<20)
	for name, c := range map[string]struct {
		layer Layer
		want  string
	}{
		"Linear":    {&Linear{}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"ReLU":      {Sequential{&Linear{}, ReLU{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"Conv2d":    {&Convolution{}, "autograd: Conv2d: invalid argument: operand 2 is nil"},
		"ConvT":     {&Convolution{Transposed: true}, "autograd: ConvTranspose2d: invalid argument: operand 2 is nil"},
		"Embedding": {&Embedding{}, "autograd: Embedding: invalid argument: operand 1 is nil"},
		"GRU":       {&GRU{Kind: tensor.GRU, Cells: make([]RecurrentCell, 1)}, "autograd: GRU: invalid argument: operand 2 is nil"},
		"attention": {&MultiHeadAttention{InWeight: b.parameter(6, 2), Heads: 1, Out: &Linear{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
	} {
		tape := NewTape(b.ctx, b.rt)
		c.layer.Forward(tape, tape.Leaf(upload(b, []float64{1, 2, 3, 4}, 2, 1, 2)))
		require.EqualError(t, tape.Close(), c.want, name)
	}
}

// TestOptimizersOfNil: a nil pointer is no optimiser, and one that could not be made takes no
// parameters.
func TestOptimizersOfNil(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(1)
	for _, opt := range []Optimizer{nil, (*SGD)(nil), (*Adam)(nil), (*RMSprop)(nil), (*Adagrad)(nil)} {
		for name, minimize := range minimizers {
			tape := NewTape(b.ctx, b.rt)
			minimize(tape, tape.Sum(tape.Param(p)), opt)
			require.ErrorIs(t, tape.Close(), device.ErrInvalid, "%s of a %T", name, opt)
		}
		_, err := NewScheduler(opt, ConstantLR{})
		require.ErrorIs(t, err, device.ErrInvalid)
		require.ErrorIs(t, OffloadState(b.ctx, opt, nil, 0), device.ErrInvalid)
		if opt != nil {
			require.ErrorIs(t, Checkpoint{Optimizer: opt}.Save(b.ctx, filepath.Join(t.TempDir(), "c")), device.ErrInvalid)
		}
	}
	in := Init(b.ctx, nil)
	opt := Own(in, NewAdam(nil, AdamConfig{}))
	require.ErrorIs(t, opt.AddGroup(Parameters{{"p", p}}, AdamConfig{}), device.ErrInvalid)
	require.ErrorIs(t, opt.Step(b.ctx), device.ErrInvalid)
	require.ErrorIs(t, opt.Prepare(b.ctx), device.ErrInvalid)
	require.NoError(t, errors.Join(opt.ZeroGrad(b.ctx), opt.Close()))
	var none context.Context
	require.ErrorIs(t, opt.Step(none), device.ErrInvalid)
	require.Error(t, in.Close())
}
