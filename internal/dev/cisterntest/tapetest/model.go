package tapetest

import (
	"context"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Grads returns the gradients of the sum of f.
func (b *Bench) Grads(f func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable, args ...[]float64) (all [][]float64) {
	b.T.Helper()
	tape := autograd.NewTape(b.Ctx, b.RT)
	var leaves []*autograd.Variable
	for _, a := range args {
		leaves = append(leaves, tape.Leaf(Upload(b, a)))
	}
	_, err := tape.Backward(tape.Sum(f(tape, leaves)))
	require.NoError(b.T, err)
	for _, l := range leaves {
		all = append(all, Read[float64](b, l.Grad()))
	}
	require.NoError(b.T, tape.Close())
	return all
}

// Step runs a step of the optimiser with this gradient of p.
func (b *Bench) Step(opt optim.Optimizer, p *autograd.Parameter, grad float64) {
	b.T.Helper()
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), grad)))
	require.NoError(b.T, err)
	require.NoError(b.T, tape.Close())
	require.NoError(b.T, opt.Step(b.Ctx))
	require.NoError(b.T, opt.ZeroGrad(b.Ctx))
}

// Number returns a parameter of one number.
func (b *Bench) Number(v float64) *autograd.Parameter { return b.ParameterOf(Upload(b, []float64{v})) }

// Parameter returns a float64 parameter with the elements 1, 2, ….
func (b *Bench) Parameter(shape ...int) *autograd.Parameter {
	b.T.Helper()
	data := make([]float64, Elements(shape))
	for i := range data {
		data[i] = float64(i + 1)
	}
	p, err := autograd.NewParameter(Upload(b, data, shape...))
	require.NoError(b.T, err)
	b.T.Cleanup(func() { assert.NoError(b.T, p.ZeroGrad(b.Ctx)) })
	return p
}

// Minimizers are the two functions that run a step.
var Minimizers = map[string]func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer){
	"Minimize": optim.Minimize,
	"InBackward": func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.InBackward(t, loss, opt, 1)
	},
}

// Optimizers make the optimisers of the recorded trainings on MNIST, by the recording's name.
var Optimizers = map[string]func(autograd.Parameters) (optim.Optimizer, error){
	"sgd_lr0_1": func(p autograd.Parameters) (optim.Optimizer, error) {
		return WithErr(optim.NewSGD(p, optim.SGDConfig{LR: new(0.1)}))
	},
	"sgd_lr0_05_momentum0_9": func(p autograd.Parameters) (optim.Optimizer, error) {
		return WithErr(optim.NewSGD(p, optim.SGDConfig{LR: new(0.05), Momentum: 0.9}))
	},
	"adam_lr1e_3": func(p autograd.Parameters) (optim.Optimizer, error) {
		return WithErr(optim.NewAdam(p, optim.AdamConfig{LR: new(1e-3)}))
	},
	"adamw_lr1e_3_wd0_01": func(p autograd.Parameters) (optim.Optimizer, error) {
		return WithErr(optim.NewAdamW(p, optim.AdamConfig{LR: new(1e-3), WeightDecay: new(0.01)}))
	},
}

// Offloader makes an offloader, which the test's end closes. It offloads every tensor, unless cfg
// changes that.
func (b *Bench) Offloader(cfg tensor.OffloadConfig) *tensor.Offloader {
	b.T.Helper()
	if cfg.MinBytes == 0 {
		cfg.MinBytes = 1
	}
	o, err := tensor.NewOffloader(b.RT, cfg)
	require.NoError(b.T, err)
	b.T.Cleanup(func() {
		assert.Zero(b.T, o.Stats().Offloaded.Current, "offloaded tensors")
		assert.NoError(b.T, o.Close())
		assert.Zero(b.T, o.Stats().PinnedBytes.Current)
	})
	return o
}

// DirectionsOf returns the number of directions in which a layer reads a sequence.
func DirectionsOf(r *nn.Recurrent) int {
	if r.Bidirectional {
		return 2
	}
	return 1
}

// MLP returns the model of the reference, 784-512-512-10, with parameters drawn by the seed.
func (b *Bench) MLP(dtype tensor.Dtype, sizes ...int) nn.Sequential {
	b.T.Helper()
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(dtype))
	model := nn.Sequential{nn.Flatten{}}
	for i := range len(sizes) - 1 {
		if i > 0 {
			model = append(model, nn.ReLU{})
		}
		model = append(model, in.Linear(sizes[i], sizes[i+1]))
	}
	require.NoError(b.T, in.Err())
	b.T.Cleanup(func() { assert.NoError(b.T, model.Parameters().Release()) })
	return model
}

// BlankLinear returns a dense layer whose weights are not drawn, because drawing takes most of the
// time of making a large layer: for tests that write the weights, or that run nothing.
func BlankLinear(in *nn.Initializer, inputs, outputs int) *nn.Linear {
	blank := func(shape ...int) *autograd.Parameter {
		value, err := in.Runtime().New(memcache.WithCategory(tensor.Detached(in.Context()), memcache.CategoryParameter), in.Dtype(), shape...)
		if err != nil {
			in.Fail(err)
			return in.Ones(shape...) // a no-op after an error
		}
		p, err := autograd.NewParameter(value)
		in.Fail(err)
		nn.Own(in, closing(p.Release))
		return p
	}
	return &nn.Linear{Weight: blank(outputs, inputs), Bias: blank(outputs)}
}

// closing is a function that an initialiser calls at its end.
type closing func() error

func (c closing) Close() error { return c() }

// ParameterOf returns a parameter that owns value.
func (b *Bench) ParameterOf(value *tensor.Tensor) *autograd.Parameter {
	b.T.Helper()
	p, err := autograd.NewParameter(value)
	require.NoError(b.T, err)
	return p
}

// WithErr returns an optimiser with its sticky error.
func WithErr[O optim.Optimizer](o O) (O, error) { return o, o.Core().Err() }

// NewTape returns a tape that records, or one of NoGrad.
func NewTape(ctx context.Context, rt *tensor.Runtime, record bool) *autograd.Tape {
	if record {
		return autograd.NewTape(ctx, rt)
	}
	return autograd.NoGrad(ctx, rt)
}
