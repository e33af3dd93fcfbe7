package nn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type (
	failing  = tapetest.Failing
	onTape   = *autograd.Tape
	variable = *autograd.Variable
	maker    = *nn.Initializer
)

// layerRows are the functions that make layers, and a shape that the layers take.
var layerRows = []struct {
	Of    string
	make  func(in maker) nn.Layer
	shape []int
}{
	{Of: "Initializer.Linear Linear.Forward", make: func(in maker) nn.Layer { return in.Linear(3, 2) }, shape: []int{2, 3}},
	{Of: "Initializer.Conv1d", make: func(in maker) nn.Layer { return in.Conv1d(2, 3, 2) }, shape: []int{2, 2, 4}},
	{Of: "Initializer.Conv2d Convolution.Forward", make: func(in maker) nn.Layer { return in.Conv2d(2, 3, 2) }, shape: []int{1, 2, 3, 4}},
	{Of: "Initializer.ConvTranspose1d", make: func(in maker) nn.Layer { return in.ConvTranspose1d(2, 3, 2) }, shape: []int{2, 2, 4}},
	{Of: "Initializer.ConvTranspose2d", make: func(in maker) nn.Layer { return in.ConvTranspose2d(2, 3, 2) }, shape: []int{1, 2, 3, 4}},
	{Of: "Initializer.LayerNorm LayerNorm.Forward", make: func(in maker) nn.Layer { return in.LayerNorm(3) }, shape: []int{2, 3}},
	{Of: "Initializer.GroupNorm GroupNorm.Forward", make: func(in maker) nn.Layer { return in.GroupNorm(2, 2) }, shape: []int{2, 2, 3}},
	{Of: "Initializer.InstanceNorm InstanceNorm.Forward", make: func(in maker) nn.Layer { return in.InstanceNorm(2, nn.Affine()) }, shape: []int{2, 2, 3}},
	{Of: "Initializer.PReLU PReLU.Forward", make: func(in maker) nn.Layer { return in.PReLU(2) }, shape: []int{2, 2, 3}},
	{Of: "Initializer.RMSNorm RMSNorm.Forward", make: func(in maker) nn.Layer { return in.RMSNorm(3) }, shape: []int{2, 3}},
	{Of: "Initializer.RNN RNN.Forward Recurrent.Forward", make: func(in maker) nn.Layer { return in.RNN(3, 2, nn.Layers(2)) }, shape: []int{2, 3}},
	{Of: "Initializer.LSTM LSTM.Forward", make: func(in maker) nn.Layer { return in.LSTM(3, 2, nn.Bidirectional()) }, shape: []int{2, 1, 3}},
	{Of: "Initializer.GRU GRU.Forward", make: func(in maker) nn.Layer { return in.GRU(3, 2, nn.BatchFirst()) }, shape: []int{1, 2, 3}},
	{Of: "Initializer.MultiHeadAttention MultiHeadAttention.Forward", make: func(in maker) nn.Layer {
		return in.MultiHeadAttention(4, 2, nn.Causal())
	}, shape: []int{2, 1, 4}},
	{Of: "Sequential.Forward", make: func(in maker) nn.Layer {
		return nn.Sequential{in.Linear(3, 2), nn.ReLU{}, nn.Sequential{nn.Sigmoid{}, in.Linear(2, 3)}, nn.Dropout{P: 0.5}}
	}, shape: []int{2, 3}},

	{Of: "AdaptiveAvgPool2d.Forward", make: plain(nn.AdaptiveAvgPool2d{Size: []int{2, 2}}), shape: []int{1, 2, 3, 4}},
	{Of: "AvgPool2d.Forward", make: plain(nn.AvgPool2d{Kernel: []int{2}}), shape: []int{1, 2, 3, 4}},
	{Of: "MaxPool2d.Forward", make: plain(nn.MaxPool2d{Kernel: []int{2}}), shape: []int{1, 2, 3, 4}},
	{Of: "Upsample.Forward", make: plain(nn.Upsample{ScaleFactor: []float64{2}, Bilinear: true}), shape: []int{1, 2, 3, 4}},
	{Of: "ReflectionPad1d.Forward", make: plain(nn.ReflectionPad1d{Padding: []int{1, 2}}), shape: []int{2, 3}},
	{Of: "ReflectionPad2d.Forward", make: plain(nn.ReflectionPad2d{Padding: []int{1}}), shape: []int{2, 3}},
	{Of: "ReplicationPad1d.Forward", make: plain(nn.ReplicationPad1d{Padding: []int{1, 2}}), shape: []int{2, 3}},
	{Of: "ReplicationPad2d.Forward", make: plain(nn.ReplicationPad2d{Padding: []int{1}}), shape: []int{2, 3}},
	{Of: "Func.Forward", make: plain(nn.Func(func(t onTape, x variable) variable { return t.Mul(t.Exp(x), x) })), shape: []int{2, 3}},
	{Of: "Dropout2d.Forward", make: plain(nn.Dropout2d{P: 0.5}), shape: []int{2, 3}},
	{Of: "Dropout.Forward", make: plain(nn.Dropout{P: 0.5}), shape: []int{2, 3}},
	{Of: "ELU.Forward", make: plain(nn.ELU{}), shape: []int{2, 3}},
	{Of: "Flatten.Forward", make: plain(nn.Flatten{}), shape: []int{2, 2, 3}},
	{Of: "GELU.Forward", make: plain(nn.GELU{Tanh: true}), shape: []int{2, 3}},
	{Of: "Hardtanh.Forward", make: plain(nn.Hardtanh{Min: -1, Max: 1}), shape: []int{2, 3}},
	{Of: "Identity.Forward", make: plain(nn.Identity{}), shape: []int{2, 3}},
	{Of: "LeakyReLU.Forward", make: plain(nn.LeakyReLU{}), shape: []int{2, 3}},
	{Of: "LogSigmoid.Forward", make: plain(nn.LogSigmoid{}), shape: []int{2, 3}},
	{Of: "LogSoftmax.Forward", make: plain(nn.LogSoftmax{}), shape: []int{2, 3}},
	{Of: "ReLU.Forward", make: plain(nn.ReLU{}), shape: []int{2, 3}},
	{Of: "SiLU.Forward", make: plain(nn.SiLU{}), shape: []int{2, 3}},
	{Of: "Sigmoid.Forward", make: plain(nn.Sigmoid{}), shape: []int{2, 3}},
	{Of: "Softmax.Forward", make: plain(nn.Softmax{}), shape: []int{2, 3}},
	{Of: "Softplus.Forward", make: plain(nn.Softplus{}), shape: []int{2, 3}},
	{Of: "Tanh.Forward", make: plain(nn.Tanh{}), shape: []int{2, 3}},
}

// plain returns a function for a layer without parameters.
func plain(l nn.Forwarder) func(maker) nn.Layer {
	return func(maker) nn.Layer { return nn.LayerOf(l) }
}

// newInit makes an initialiser with a seed.
func newInit(ctx context.Context, m *failing) maker {
	return nn.Init(ctx, m.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
}

// applies is a trial of a function of a layer and of a parameter of this shape, forward and
// backward.
func applies[L nn.Layer](make func(in maker) L, do func(t onTape, l L, x variable) variable, shape ...int) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		in := newInit(m.Ctx, m)
		l := make(in)
		require.NoError(t, in.Err())
		x := m.Operands(tensor.Float64, shape)
		var buffers []*tensor.Tensor
		for _, b := range nn.BuffersOf(l) {
			buffers = append(buffers, b.Tensor)
		}
		return m.OnTape(tapetest.TapeTrial{
			Parameters: append(x, l.Parameters()...), Buffers: buffers,
			Do:   func(t onTape) variable { return do(t, l, t.Param(x[0].Parameter)) },
			Undo: func() error { return errors.Join(x.Release(), in.Close()) },
		})
	}
}

// makes is a trial of an object that an initialiser makes. After an error nothing of it is left.
// See shows the numbers that see returns, those that are drawn next, and the live tensors.
func makes[T any](make func(in maker) T, see func(m *failing, made T) any) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		var in maker
		var made T
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				i := newInit(ctx, m)
				x := make(i)
				if err := i.Err(); err != nil {
					return err // without Close
				}
				in, made = i, x
				return nil
			},
			See: func() any {
				live, bytes := m.RT.Live()
				if in == nil {
					return []any{live, bytes}
				}
				state, err := in.RandomState()
				return []any{live, bytes, see(m, made), state, err}
			},
			Undo: func() error { return in.Close() },
		}
	}
}

func seeLayer(m *failing, l nn.Layer) any {
	all := m.SeeParameters(l.Parameters())
	for _, b := range nn.BuffersOf(l) {
		all = append(all, m.Numbers(b.Tensor))
	}
	return all
}

// TestLayersFail: whichever driver call, allocation or check of a context fails, a layer and the
// function that makes it take full effect or none, and succeed afterwards.
func TestLayersFail(t *testing.T) {
	var rows []failtest.Row[*failing]
	forward := func(t onTape, l nn.Layer, x variable) variable { return l.Forward(t, x) }
	for _, r := range layerRows {
		rows = append(rows, failtest.Row[*failing]{Of: r.Of, Make: applies(r.make, forward, r.shape...)})
		if strings.HasPrefix(r.Of, "Initializer") {
			rows = append(rows, failtest.Row[*failing]{Of: "made: " + r.Of, Make: makes(r.make, seeLayer)})
		}
	}
	tapetest.UncachedSuite(t, append(rows, modelRows...))
	tapetest.FailingSuite(t, captureRows)
}
