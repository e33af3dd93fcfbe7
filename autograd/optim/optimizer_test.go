package optim_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestOptimizersRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ps := b.MLP(tensor.Float32, 2, 2).Parameters()
	nan := math.NaN()
	for name, c := range map[string]func() (optim.Optimizer, error){
		"no parameters": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(nil, optim.SGDConfig{}))
		},
		"a parameter twice": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(append(ps, ps[0]), optim.SGDConfig{}))
		},
		"a nil parameter": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "w"}}, optim.SGDConfig{}))
		},
		"NaN": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(nan)}))
		},
		"a negative rate": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{LR: new(-1.0)}))
		},
		"an infinite rate": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{LR: new(math.Inf(1))}))
		},
		"a negative momentum": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Momentum: -1}))
		},
		"Nesterov without": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Nesterov: true}))
		},
		"a beta of 1": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{Beta1: new(1.0)}))
		},
		"a beta of NaN": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdamW(ps, optim.AdamConfig{Beta2: new(nan)}))
		},
		"a negative decay": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdamW(ps, optim.AdamConfig{WeightDecay: new(-1.0)}))
		},
		"a decay that is NaN": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{WeightDecay: nan}))
		},
		"an eps below 0": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{Eps: new(-1.0)}))
		},
		"a dampening of NaN": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Dampening: nan}))
		},
		"dampened Nesterov": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Nesterov: true, Momentum: 1, Dampening: 1}))
		},
		"an infinite dampening": func() (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Dampening: math.Inf(-1)}))
		},
	} {
		_, err := c()
		assert.ErrorIs(t, err, autograd.ErrInvalid, name)
	}
	opt, err := tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{}))
	require.NoError(t, err)
	assert.Equal(t, 1e-3, opt.LR())
	assert.ErrorIs(t, opt.SetLR(nan), autograd.ErrInvalid)
	assert.NoError(t, opt.SetLR(0))
}

// TestParametersWithoutGradientAreSkipped: parameters without a gradient are skipped, and each
// counts its own steps, as in PyTorch.
func TestParametersWithoutGradientAreSkipped(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, err := autograd.NewParameter(tapetest.Upload(b, []float64{1}))
	require.NoError(t, err)
	q, err := autograd.NewParameter(tapetest.Upload(b, []float64{1}))
	require.NoError(t, err)
	opt, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}, optim.AdamConfig{LR: new(0.5)}))
	require.NoError(t, err)
	step := func(ps ...*autograd.Parameter) {
		require.NoError(t, opt.ZeroGrad(b.Ctx))
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Param(ps[0])
		for _, p := range ps[1:] {
			loss = tape.Add(loss, tape.Param(p))
		}
		_, err := tape.Backward(tape.Sum(tape.MulScalar(loss, 3)))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		require.NoError(t, opt.Step(b.Ctx))
	}
	value := func(p *autograd.Parameter) float64 {
		v, err := tensor.Item[float64](b.Ctx, p.Value())
		require.NoError(t, err)
		return v
	}
	require.NoError(t, opt.Step(b.Ctx), "nothing has a gradient")
	step(p)
	assert.InDelta(t, 0.5, value(p), 1e-8)
	assert.Equal(t, 1.0, value(q))
	assert.Nil(t, optim.StateOf(opt)[1], "q has no state yet")
	step(p, q)
	assert.InDelta(t, 0.5, value(q), 1e-8, "q's first step, with a first step's correction")
	require.NoError(t, opt.Close())
	require.NoError(t, opt.ZeroGrad(b.Ctx))
}

// TestParametersOfTwoRuntimes: one step is on one stream, so an optimiser has parameters of one runtime.
func TestParametersOfTwoRuntimes(t *testing.T) {
	a, b := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	params := append(a.MLP(tensor.Float32, 1, 1).Parameters(), b.MLP(tensor.Float32, 1, 1).Parameters()...)
	for name, make := range tapetest.Optimizers {
		_, err := make(params)
		require.ErrorIs(t, err, tensor.ErrRuntime, name)
		require.ErrorContains(t, err, `parameters "1.weight" and "1.weight" live in two runtimes`, name)
		_, err = make(params[2:])
		require.NoError(t, err, name)
	}
}

// TestZeroIsANumber: 0 is a valid learning rate and beta, not the default.
func TestZeroIsANumber(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, err := autograd.NewParameter(tapetest.Upload(b, []float64{1}))
	require.NoError(t, err)
	ps := autograd.Parameters{{Name: "p", Parameter: p}}
	train := func(opt optim.Optimizer, err error) (values []float64) {
		require.NoError(t, err)
		require.NoError(t, tensor.CopyFrom(b.Ctx, p.Value(), []float64{1}))
		for _, factor := range []float64{3, -1} { // the gradients
			tape := autograd.NewTape(b.Ctx, b.RT)
			_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), factor)))
			require.NoError(t, err)
			require.NoError(t, errors.Join(tape.Close(), opt.Step(b.Ctx), opt.ZeroGrad(b.Ctx)))
			values = append(values, tapetest.Read[float64](b, p.Value())[0])
		}
		require.NoError(t, opt.Close())
		return values
	}
	assert.Equal(t, []float64{1, 1}, train(tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(0.0)}))))
	assert.Equal(t, []float64{1, 1}, train(tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{LR: new(0.0)}))))
	assert.InDeltaSlice(t, []float64{0.997, 0.998}, train(tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{}))), 1e-12, "1e-3 is the default")

	// Without a first moment the second step depends only on its own gradient, -1.
	second := func(beta1, beta2, eps float64) float64 {
		m1, m2 := 3*(1-beta1), 9*(1-beta2)
		m1, m2 = beta1*m1-(1-beta1), beta2*m2+(1-beta2)
		return m1 / (1 - beta1*beta1) / (math.Sqrt(m2/(1-beta2*beta2)) + eps)
	}
	for name, c := range map[string]struct {
		cfg               optim.AdamConfig
		beta1, beta2, eps float64
	}{
		"defaults": {optim.AdamConfig{LR: new(0.5)}, 0.9, 0.999, 1e-8},
		"Beta1: 0": {optim.AdamConfig{LR: new(0.5), Beta1: new(0.0)}, 0, 0.999, 1e-8},
		"Beta2: 0": {optim.AdamConfig{LR: new(0.5), Beta2: new(0.0)}, 0.9, 0, 1e-8},
		"Eps: 0":   {optim.AdamConfig{LR: new(0.5), Eps: new(0.0)}, 0.9, 0.999, 0},
		"Eps: 1":   {optim.AdamConfig{LR: new(0.5), Eps: new(1.0)}, 0.9, 0.999, 1},
	} {
		first := 1 - 0.5*3/(3+c.eps)
		assert.InDeltaSlice(t, []float64{first, first - 0.5*second(c.beta1, c.beta2, c.eps)}, train(tapetest.WithErr(optim.NewAdam(ps, c.cfg))), 1e-12, name)
	}
}

// TestRestoreDropsStateThatTheRecordLacks: after a record from before the first step, a step is a
// first step, although the optimiser has taken others.
func TestRestoreDropsStateThatTheRecordLacks(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, of := range map[string]func(autograd.Parameters) optim.Optimizer{
		"SGD":     func(ps autograd.Parameters) optim.Optimizer { return optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.5}) },
		"Adam":    func(ps autograd.Parameters) optim.Optimizer { return optim.NewAdam(ps, optim.AdamConfig{}) },
		"RMSprop": func(ps autograd.Parameters) optim.Optimizer { return optim.NewRMSprop(ps, optim.RMSpropConfig{}) },
		"Adagrad": func(ps autograd.Parameters) optim.Optimizer { return optim.NewAdagrad(ps, optim.AdagradConfig{}) },
	} {
		p := b.Number(1)
		used := of(autograd.Parameters{{Name: "p", Parameter: p}})
		record := used.Core().Record()
		b.Step(used, p, 7)
		q := b.Number(tapetest.Read[float64](b, p.Value())[0])
		fresh := of(autograd.Parameters{{Name: "q", Parameter: q}})
		require.NoError(t, used.Core().Restore(b.Ctx, record), name)
		b.Step(used, p, -1)
		b.Step(fresh, q, -1)
		assert.Equal(t, tapetest.Read[float64](b, q.Value()), tapetest.Read[float64](b, p.Value()), name)
		require.NoError(t, errors.Join(used.Close(), fresh.Close()))
	}
}
