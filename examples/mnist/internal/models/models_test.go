package models

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// The models have the parameters of PyTorch's, with the same names.
func TestModels(t *testing.T) {
	env, err := tensor.Open("host")
	require.NoError(t, err)
	in := nn.Init(t.Context(), env, nn.Seed(1))
	for name, want := range map[string]struct {
		parameters int
		names      string
	}{
		"mlp":    {669_706, "0.weight 0.bias 2.weight 2.bias 4.weight 4.bias"},
		"cnn":    {1_199_882, "0.weight 0.bias 2.weight 2.bias 6.weight 6.bias 8.weight 8.bias"},
		"resnet": {308_074, "0.weight 1.weight 1.bias 3.a.weight 3.na.weight 3.na.bias 3.b.weight 3.nb.weight 3.nb.bias 4.a.weight"},
		"vit":    {204_938, "p.weight p.bias pos b.0.n1.weight b.0.n1.bias b.0.qkv.weight b.0.qkv.bias b.0.o.weight b.0.o.bias b.0.n2.weight"},
		"lstm":   {82_186, "l.weight_ih_l0 l.weight_hh_l0 l.bias_ih_l0 l.bias_hh_l0 o.weight o.bias"},
	} {
		model := Recipes[name].Model(in)
		require.NoError(t, in.Err(), name)
		require.Equal(t, want.parameters, model.Parameters().Elements(), name)
		var names []string
		for _, p := range model.Parameters() {
			names = append(names, p.Name)
		}
		require.True(t, strings.HasPrefix(strings.Join(names, " "), want.names), "%s: %v", name, names)
	}
	require.NoError(t, in.Close())
	require.NoError(t, env.Close())
}

// The learning rates follow the recipes: to 0 in a straight line, or up and then down in half a
// cosine.
func TestRates(t *testing.T) {
	require.InDelta(t, 1, Linear(0, 100), 0)
	require.InDelta(t, 0.25, Linear(75, 100), 1e-15)
	require.InDelta(t, 0.2, warmCosine(0, 100), 1e-15)
	require.InDelta(t, 0.8*0.99778, warmCosine(3, 100), 1e-5)
	require.InDelta(t, 0.5, warmCosine(50, 100), 1e-15)
	require.InDelta(t, 0, warmCosine(100, 100), 1e-15)
}

// The output of a residual block contains its input, whatever the convolutions compute.
func TestResidual(t *testing.T) {
	env, err := tensor.Open("host")
	require.NoError(t, err)
	in := nn.Init(t.Context(), env, nn.Seed(1))
	layer := newResidual(in, 2, 2, 1)
	x := in.Tensor([]float64{1, 2, 3, 4, 5, 6, 7, 8}, 1, 2, 2, 2)
	require.NoError(t, in.Err())
	for _, p := range layer.Parameters() {
		if p.Name == "nb.weight" {
			require.NoError(t, env.Zero(t.Context(), p.Value()))
		}
	}
	tape := autograd.NoGrad(t.Context(), env)
	y, err := tensor.ToSlice[float32](t.Context(), layer.Forward(tape, tape.Input(x)).Value(), nil)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8}, y)
	require.NoError(t, tape.Close())
	require.NoError(t, in.Close())
	require.NoError(t, env.Close())
}
