package nn_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// conditioned is a model of two arguments, with a weight of its own and tied ones.
type conditioned struct {
	Fc, Same *nn.Linear
	Scale    *autograd.Parameter
	Norm     *nn.BatchNorm
}

func (c *conditioned) forward(t *autograd.Tape, x, condition *autograd.Variable) *autograd.Variable {
	y := c.Norm.Forward(t, c.Fc.Forward(t, x))
	return t.Add(t.Mul(y, t.Param(c.Scale)), condition)
}

// TestWith: a layer with a mask and a model with a second argument have the same names, buffers and
// gradients in a chain as on their own.
func TestWith(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer in.Close()
	attention := in.MultiHeadAttention(4, 2)
	model := &conditioned{Fc: in.Linear(4, 4), Scale: in.Ones(4), Norm: in.BatchNorm(4)}
	model.Same = model.Fc
	values := make([]float64, 3*2*4)
	for i := range values {
		values[i] = float64(i*5%11)/5 - 1
	}
	x := in.Tensor(values, 3, 2, 4)
	mask := in.Tensor([]float64{0, -1e9, -1e9, 0, 0, -1e9, 0, 0, 0}, 3, 3)
	require.NoError(t, in.Err())
	var masked, condition *autograd.Variable
	attend := func(m *nn.MultiHeadAttention, t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return m.Attend(t, x, x, x, autograd.AttentionConfig{Mask: masked})
	}
	chain := nn.Sequential{nn.Tanh{}, nn.With(attention, attend),
		nn.Func(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Reshape(t.MulScalar(x, 2), 6, 4)
		}),
		nn.With(model, func(m *conditioned, t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return m.forward(t, x, condition)
		})}
	var names []string
	for _, p := range chain.Parameters() {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"1.in_proj_weight", "1.in_proj_bias", "1.out_proj.weight", "1.out_proj.bias", "3.fc.weight", "3.fc.bias", "3.scale", "3.norm.weight", "3.norm.bias"}, names)
	state, err := nn.StateDict(chain)
	require.NoError(t, err)
	names = nil
	for _, s := range state {
		names = append(names, s.Name)
	}
	require.Subset(t, names, []string{"3.same.weight", "3.norm.running_mean"}, "tied weights have both names")
	require.NoError(t, nn.NameModules(chain))
	run := func(module string, forward func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable) (all [][]float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		masked, condition = tape.Input(mask), tape.Leaf(x)
		condition = tape.Reshape(condition, 6, 4)
		y := forward(tape, tape.Input(x))
		all = append(all, tapetest.Read[float64](b, y.Value()))
		require.Equal(t, module, y.Value().Label().Module)
		_, err := tape.Backward(tape.Sum(tape.Square(y)))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		for _, p := range chain.Parameters() {
			require.NotNil(t, p.Grad(), p.Name)
			all = append(all, tapetest.Read[float64](b, p.Grad()))
			require.NoError(t, p.ZeroGrad(b.Ctx))
		}
		return all
	}
	want := run("", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		y := attend(attention, t, t.Tanh(x))
		return model.forward(t, t.Reshape(t.MulScalar(y, 2), 6, 4), condition)
	})
	require.Equal(t, want, run("3 (conditioned)", chain.Forward))
	again := slices.Clone(chain)
	again[1], again[3] = remat.Layer(chain[1]), remat.Layer(chain[3])
	require.Equal(t, want, run("3 (conditioned)", again.Forward), "under checkpoints")
}

// TestFuncFrees intermediate values of a function that no gradient needs.
func TestFuncFrees(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, layer := range map[string]func(f nn.Func) nn.Layer{
		"Func": func(f nn.Func) nn.Layer { return f },
		"With": func(f nn.Func) nn.Layer {
			return nn.With(0, func(_ int, t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return f(t, x) })
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		ones := tapetest.Upload(b, []float64{1, 2})
		x := tape.Leaf(ones)
		require.NoError(t, ones.Release())
		var between *autograd.Variable
		y := layer(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			between = t.MulScalar(x, 2)
			return t.AddScalar(between, 1)
		}).Forward(tape, x)
		require.NoError(t, tape.Err())
		require.True(t, between.Value().Released(), name)
		require.False(t, x.Value().Released() || y.Value().Released(), name)
		require.Empty(t, layer(nil).Parameters())
		require.NoError(t, tape.Close())
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	nn.Func(nil).Forward(tape, autograd.Upload(tape, []float64{1}))
	require.EqualError(t, tape.Close(), "nn: Func: invalid argument: the layer is nil")
}
