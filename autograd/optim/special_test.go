package optim_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// An element of a parameter that is -Inf, such as a permanently masked logit, stays -Inf if its
// gradient is 0, because without a weight decay nothing is added to the gradient.
func TestOptimizersKeepInfinities(t *testing.T) {
	for name, optimizer := range map[string]func(*nn.Initializer, autograd.Parameters) optim.Optimizer{
		"SGD": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewSGD(p, optim.SGDConfig{}))
		},
		"Nesterov": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewSGD(p, optim.SGDConfig{Momentum: 0.9, Nesterov: true}))
		},
		"Adam": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewAdam(p, optim.AdamConfig{AMSGrad: true}))
		},
		"AdamW": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewAdamW(p, optim.AdamConfig{}))
		},
		"RMSprop": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewRMSprop(p, optim.RMSpropConfig{Centered: true}))
		},
		"Adagrad": func(in *nn.Initializer, p autograd.Parameters) optim.Optimizer {
			return nn.Own(in, optim.NewAdagrad(p, optim.AdagradConfig{}))
		},
	} {
		for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			b := tapetest.Open(t, 64<<20)
			in := nn.Init(b.Ctx, b.RT, nn.Dtype(dtype))
			p := in.Parameter([]float64{1, math.Inf(-1), 2}, 3)
			opt := optimizer(in, autograd.Parameters{{Name: "logits", Parameter: p}})
			for _, tape := range in.Steps(3) {
				optim.Minimize(tape, tape.CrossEntropy(tape.Unsqueeze(tape.Param(p), 0), in.Labels([]int{0}, 3)), opt)
			}
			require.NoError(t, in.Err())
			v := tapetest.Wide(b, p.Value())
			require.Equal(t, math.Inf(-1), v[1], "%s, %v: %v", name, dtype, v)
			require.False(t, math.IsNaN(v[0]+v[2]), "%s, %v: %v", name, dtype, v)
			require.NoError(t, in.Close())
		}
	}
}

// Without a first moment, as in the training of Wasserstein GANs, a step depends only on its own
// gradient, however large the previous one was.
func TestAdamWithoutFirstMoment(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	p := in.Zeros(1)
	adam := nn.Own(in, optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{LR: new(1.), Beta1: new(0.), Beta2: new(0.)}))
	want := 0.
	for _, g := range []float64{1e4, 1e-4, -1e12, 1e-3} {
		for _, tape := range in.Steps(1) {
			optim.Minimize(tape, tape.Sum(tape.MulScalar(tape.Param(p), g)), adam)
		}
		require.NoError(t, in.Err())
		want -= g / (math.Abs(g) + 1e-8)
		require.InDelta(t, want, tapetest.Wide(b, p.Value())[0], 1e-3, "after a gradient of %g", g)
	}
	require.NoError(t, in.Close())
}
