package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestLayersOfNil: Forward of a nil layer is an error of the tape.
func TestLayersOfNil(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	off, err := tensor.NewOffloader(b.RT, tensor.OffloadConfig{})
	require.NoError(t, err)
	for name, l := range map[string]nn.Layer{
		"With":    nn.With[any](nil, nil),
		"LayerOf": nn.LayerOf(nil), "remat": remat.Layer(nil), "offload": offload.Layer(nil, off), "no offloader": offload.Layer(nn.ReLU{}, nil), "plan": new(remat.Plan).Layer("x", nil),
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		l.Forward(tape, tape.Leaf(tapetest.Upload(b, []float64{1})))
		require.ErrorIs(t, tape.Close(), device.ErrInvalid, name)
		require.Empty(t, l.Parameters(), name)
		require.Empty(t, l.(nn.Buffered).Buffers(), name)
	}
	require.NoError(t, off.Close())
}

// TestLayersWithoutWeights: a missing weight is an error of the operation that reads it.
func TestLayersWithoutWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		layer nn.Layer
		want  string
	}{
		"Linear":    {&nn.Linear{}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"ReLU":      {nn.Sequential{&nn.Linear{}, nn.ReLU{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
		"Conv2d":    {&nn.Convolution{}, "autograd: Conv2d: invalid argument: operand 2 is nil"},
		"ConvT":     {&nn.Convolution{Transposed: true}, "autograd: ConvTranspose2d: invalid argument: operand 2 is nil"},
		"Embedding": {&nn.Embedding{}, "autograd: Embedding: invalid argument: operand 1 is nil"},
		"GRU":       {&nn.GRU{Kind: tensor.GRU, Cells: make([]nn.RecurrentCell, 1)}, "autograd: GRU: invalid argument: operand 2 is nil"},
		"attention": {&nn.MultiHeadAttention{InWeight: b.Parameter(6, 2), Heads: 1, Out: &nn.Linear{}}, "autograd: Linear: invalid argument: operand 2 is nil"},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.layer.Forward(tape, tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 1, 2)))
		require.EqualError(t, tape.Close(), c.want, name)
	}
}
