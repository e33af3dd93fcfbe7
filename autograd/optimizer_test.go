package autograd

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
)

func TestOptimizersRefuse(t *testing.T) {
	b := open(t, 64<<20)
	ps := b.mlp(gtensor.Float32, 2, 2).Parameters()
	nan := math.NaN()
	for name, c := range map[string]func() (Optimizer, error){
		"no parameters":         func() (Optimizer, error) { return NewSGD(nil, SGDConfig{}) },
		"a parameter twice":     func() (Optimizer, error) { return NewSGD(append(ps, ps[0]), SGDConfig{}) },
		"a nil parameter":       func() (Optimizer, error) { return NewSGD(Parameters{{Name: "w"}}, SGDConfig{}) },
		"NaN":                   func() (Optimizer, error) { return NewSGD(ps, SGDConfig{LR: nan}) },
		"a negative rate":       func() (Optimizer, error) { return NewAdam(ps, AdamConfig{LR: -1}) },
		"an infinite rate":      func() (Optimizer, error) { return NewAdam(ps, AdamConfig{LR: math.Inf(1)}) },
		"a negative momentum":   func() (Optimizer, error) { return NewSGD(ps, SGDConfig{Momentum: -1}) },
		"Nesterov without":      func() (Optimizer, error) { return NewSGD(ps, SGDConfig{Nesterov: true}) },
		"a beta of 1":           func() (Optimizer, error) { return NewAdam(ps, AdamConfig{Beta1: 1}) },
		"a beta of NaN":         func() (Optimizer, error) { return NewAdamW(ps, AdamConfig{Beta2: nan}) },
		"a negative decay":      func() (Optimizer, error) { return NewAdamW(ps, AdamConfig{WeightDecay: -1}) },
		"a decay that is NaN":   func() (Optimizer, error) { return NewSGD(ps, SGDConfig{WeightDecay: nan}) },
		"an eps below 0":        func() (Optimizer, error) { return NewAdam(ps, AdamConfig{Eps: -1}) },
		"a dampening of NaN":    func() (Optimizer, error) { return NewSGD(ps, SGDConfig{Dampening: nan}) },
		"dampened Nesterov":     func() (Optimizer, error) { return NewSGD(ps, SGDConfig{Nesterov: true, Momentum: 1, Dampening: 1}) },
		"an infinite dampening": func() (Optimizer, error) { return NewSGD(ps, SGDConfig{Dampening: math.Inf(-1)}) },
	} {
		_, err := c()
		assert.ErrorIs(t, err, ErrInvalid, name)
	}
	opt, err := NewSGD(ps, SGDConfig{})
	require.NoError(t, err)
	assert.Equal(t, 1e-3, opt.LR())
	assert.ErrorIs(t, opt.SetLR(nan), ErrInvalid)
	assert.NoError(t, opt.SetLR(0))
}

// TestParametersWithoutGradientAreSkipped and count their own steps, as in PyTorch.
func TestParametersWithoutGradientAreSkipped(t *testing.T) {
	b := open(t, 64<<20)
	p, err := NewParameter(upload(b, []float64{1}))
	require.NoError(t, err)
	q, err := NewParameter(upload(b, []float64{1}))
	require.NoError(t, err)
	opt, err := NewAdam(Parameters{{"p", p}, {"q", q}}, AdamConfig{LR: 0.5})
	require.NoError(t, err)
	step := func(ps ...*Parameter) {
		require.NoError(t, opt.ZeroGrad(b.ctx))
		tape := NewTape(b.ctx, b.rt)
		loss := tape.Param(ps[0])
		for _, p := range ps[1:] {
			loss = tape.Add(loss, tape.Param(p))
		}
		_, err := tape.Backward(tape.Sum(tape.Scale(loss, 3)))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		require.NoError(t, opt.Step(b.ctx))
	}
	value := func(p *Parameter) float64 {
		v, err := tensor.Item[float64](b.ctx, p.Value())
		require.NoError(t, err)
		return v
	}
	require.NoError(t, opt.Step(b.ctx), "nothing has a gradient")
	step(p)
	assert.InDelta(t, 0.5, value(p), 1e-8)
	assert.Equal(t, 1.0, value(q))
	step(p, q)
	assert.InDelta(t, 0.5, value(q), 1e-8, "q's first step, with a first step's correction")
	require.NoError(t, opt.Close())
	require.NoError(t, opt.ZeroGrad(b.ctx))
}

// TestStepsParametersOfTwoRuntimes: parameters may live on two devices; each is updated where it is.
func TestStepsParametersOfTwoRuntimes(t *testing.T) {
	a, b := open(t, 64<<20), open(t, 64<<20)
	var params Parameters
	for _, x := range []*bench{a, b, a} {
		l, err := NewLinear(x.ctx, x.rt, gtensor.Float32, 1, 1, NewRand(1))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Parameters().Release()) })
		params = append(params, l.Parameters()...)
		tape := NewTape(x.ctx, x.rt)
		_, err = tape.Backward(tape.Sum(l.Forward(tape, tape.Input(upload(x, []float32{1}, 1, 1)))))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
	}
	for name, make := range optimizers {
		opt, err := make(params)
		require.NoError(t, err, name)
		before := values(a, b, params)
		require.NoError(t, opt.Step(t.Context()), name)
		for i, v := range values(a, b, params) {
			require.Less(t, v, before[i], "%s, parameter %d: its gradient is 1", name, i)
		}
		require.NoError(t, opt.Close())
	}
}

func values(a, b *bench, params Parameters) (all []float32) {
	for _, p := range params {
		x := a
		if p.Value().Runtime() == b.rt {
			x = b
		}
		all = append(all, read[float32](x, p.Value())[0])
	}
	return all
}
