package optim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestOptimizersAgainstPlainFormulas: three steps with all options, in plain float64.
func TestOptimizersAgainstPlainFormulas(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const rate, decay = 0.1, 0.2
	grads := []float64{3, -1, 0.5}
	adam := func(decoupled bool) func() []float64 {
		return func() (ws []float64) {
			w, m, v := 1.0, 0.0, 0.0
			for i, g := range grads {
				if decoupled {
					w -= rate * decay * w
				} else {
					g += decay * w
				}
				m, v = 0.8*m+0.2*g, 0.7*v+0.3*g*g
				n := float64(i + 1)
				w -= rate * m / (1 - math.Pow(0.8, n)) / (math.Sqrt(v/(1-math.Pow(0.7, n))) + 1e-3)
				ws = append(ws, w)
			}
			return ws
		}
	}
	sgd := func(momentum, dampening float64, nesterov bool) func() []float64 {
		return func() (ws []float64) {
			w, buf := 1.0, 0.0
			for i, g := range grads {
				g += decay * w
				if i == 0 {
					buf = g
				} else {
					buf = momentum*buf + (1-dampening)*g
				}
				switch {
				case nesterov:
					g += momentum * buf
				case momentum != 0:
					g = buf
				}
				w -= rate * g
				ws = append(ws, w)
			}
			return ws
		}
	}
	cfg := optim.AdamConfig{LR: new(9.0), Beta1: new(0.8), Beta2: new(0.7), Eps: new(1e-3), WeightDecay: new(decay)}
	for name, c := range map[string]struct {
		make func(autograd.Parameters) (optim.Optimizer, error)
		want func() []float64
	}{
		"Adam": {func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, cfg))
		}, adam(false)},
		"AdamW": {func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdamW(ps, cfg))
		}, adam(true)},
		"SGD": {func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(9.0), WeightDecay: decay}))
		}, sgd(0, 0, false)},
		"momentum": {func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.9, Dampening: 0.3, WeightDecay: decay}))
		}, sgd(0.9, 0.3, false)},
		"Nesterov": {func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.9, Nesterov: true, WeightDecay: decay}))
		}, sgd(0.9, 0, true)},
	} {
		p := b.Parameter(1)
		opt, err := c.make(autograd.Parameters{{Name: "p", Parameter: p}})
		require.NoError(t, err, name)
		require.NoError(t, opt.SetLR(rate))
		assert.Equal(t, rate, opt.LR())
		for round := range 2 { // the second one after Close, with new state
			require.NoError(t, tensor.CopyFrom(b.Ctx, p.Value(), []float64{1}))
			if round == 1 {
				require.NoError(t, opt.Prepare(b.Ctx))
				require.NoError(t, opt.Prepare(b.Ctx))
			}
			var got []float64
			for _, g := range grads {
				tape := autograd.NewTape(b.Ctx, b.RT)
				_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), g)))
				require.NoError(t, errors.Join(err, tape.Close(), opt.Step(b.Ctx), opt.ZeroGrad(b.Ctx)), name)
				got = append(got, tapetest.Read[float64](b, p.Value())[0])
			}
			assert.InDeltaSlice(t, c.want(), got, 1e-12, "%s, round %d", name, round)
			require.NoError(t, opt.Close())
			require.NoError(t, opt.Close())
		}
	}
}

// TestOptimizersNameParameters: errors of optimisers name the parameter.
func TestOptimizersNameParameters(t *testing.T) {
	b := tapetest.Open(t, 2<<20)
	p, q := b.Parameter(1), b.Parameter(1)
	opt, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "first", Parameter: p}, {Name: "second", Parameter: q}}, optim.AdamConfig{}))
	require.NoError(t, err)
	filler := b.Fill(3)
	before := b.Live()
	err = opt.Prepare(b.Ctx)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	require.ErrorContains(t, err, `optim: state of parameter "second"`)
	assert.Equal(t, before+2, b.Live(), "the first one has its state, the second one nothing")
	for _, block := range filler {
		require.NoError(t, block.Free())
	}
	require.NoError(t, opt.Prepare(b.Ctx))
	assert.Len(t, optim.StateOf(opt)[1], 2)
	require.NoError(t, opt.Close())
	_, err = tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "first", Parameter: p}, {Name: "again", Parameter: p}}, optim.SGDConfig{}))
	require.ErrorContains(t, err, `"first" and "again" are the same`)
	_, err = tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "first", Parameter: p}, {Name: "empty", Parameter: &autograd.Parameter{}}}, optim.SGDConfig{}))
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, `parameter "empty": invalid argument: the parameter is nil`)
	require.NoError(t, p.Release())
	q.SetGrad(b.Parameter(1).Value())
	opt, err = tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "second", Parameter: q}}, optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, q.Value().Release())
	require.ErrorIs(t, opt.Step(b.Ctx), tensor.ErrReleased)
	assert.Zero(t, optim.StepsOf(opt)[0], "a step that failed")
	require.NoError(t, opt.Close())
}

// TestStepsThatFail: failed steps return errors, count nothing, and leave no gradient in the
// optimiser.
func TestStepsThatFail(t *testing.T) {
	b := tapetest.Open(t, 2<<20)
	for name, make := range tapetest.Optimizers {
		p := b.Parameter(1)
		opt, err := make(autograd.Parameters{{Name: "p", Parameter: p}})
		require.NoError(t, err)
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err = tape.Backward(tape.Sum(tape.Param(p)))
		require.NoError(t, errors.Join(err, tape.Close()))
		if name != "sgd_lr0_1" { // it has no state
			filler := b.Fill(0)
			require.ErrorIs(t, opt.Step(b.Ctx), memcache.ErrOutOfMemory, name)
			for _, block := range filler {
				require.NoError(t, block.Free())
			}
		}
		assert.Equal(t, []float64{1}, tapetest.Read[float64](b, p.Value()), name)
		require.NoError(t, opt.Step(b.Ctx))
		grad := p.Grad()
		require.NoError(t, p.ZeroGrad(b.Ctx))
		p.SetGrad(grad) // which is released
		require.ErrorIs(t, opt.Step(b.Ctx), tensor.ErrReleased, name)
		require.ErrorContains(t, opt.Step(b.Ctx), "optim: ", name)
		switch o := opt.(type) {
		case *optim.Adam:
			assert.Equal(t, []int{1}, optim.StepsOf(o), name)
			assert.Nil(t, optim.UpdatesOf(o)[0].G, name)
		case *optim.SGD:
			assert.Equal(t, []int{1}, optim.StepsOf(o), name)
			assert.Nil(t, optim.UpdatesOf(o)[0].G, name)
		}
		p.SetGrad(nil)
		require.NoError(t, opt.SetLR(math.MaxFloat64))
		require.NoError(t, opt.SetLR(0))
		require.NoError(t, opt.Close())
	}
}

// TestMomentumThatComesAndGoes: momenta that change between steps, also from and to 0, agree with
// PyTorch's formulas. SGD's buffer begins as the gradient of the first step with momentum, and
// RMSprop's as 0. Steps without momentum don't change it.
func TestMomentumThatComesAndGoes(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(5, 6))
	const rate, dampening = 0.1, 0.3
	type momentous interface {
		optim.Optimizer
		Groups() []*optim.Group
	}
	for i := range 40 {
		p, ps := b.Parameter(1), autograd.Parameters{}
		ps = append(ps, autograd.Named{Name: "p", Parameter: p})
		var opt momentous
		var err error
		rms := i%2 == 1
		first := []float64{0, 0.9}[i/2%2]
		if rms {
			opt, err = tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{LR: new(rate), Momentum: first}))
		} else {
			opt, err = tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(rate), Momentum: first, Dampening: dampening}))
		}
		require.NoError(t, err)
		w, square, buf, filled := 1.0, 0.0, 0.0, rms
		for step := range 8 {
			momentum, g := first, random.NormFloat64()
			if step > 0 {
				momentum = []float64{0, 0.5, 0.9}[random.IntN(3)]
				require.NoError(t, opt.Groups()[0].SetMomentum(momentum))
			}
			b.Step(opt, p, g)
			add := 1 - dampening
			if rms {
				square = 0.99*square + 0.01*g*g
				g /= math.Sqrt(square) + 1e-8
				add = 1
			}
			if momentum != 0 {
				if filled {
					g = momentum*buf + add*g
				}
				buf, filled = g, true
			}
			w -= rate * g
			require.InDelta(t, w, tapetest.Read[float64](b, p.Value())[0], 1e-12, "step %d, RMSprop %v", step, rms)
		}
		require.NoError(t, opt.Close())
	}
}

// TestCapturedMomentumStaysOnOrOff: a replay fails if the momentum was turned on or off since the
// capture; other changes of it are allowed.
func TestCapturedMomentumStaysOnOrOff(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, make := range map[string]func(autograd.Parameters, float64) (optim.Optimizer, error){
		"SGD": func(ps autograd.Parameters, m float64) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{Momentum: m}))
		},
		"RMSprop": func(ps autograd.Parameters, m float64) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{Momentum: m}))
		},
	} {
		for _, captured := range []float64{0, 0.5} {
			p := b.Parameter(1)
			opt, err := make(autograd.Parameters{{Name: "p", Parameter: p}}, captured)
			require.NoError(t, err)
			b.Step(opt, p, 1)
			tape := autograd.NewTape(b.Ctx, b.RT)
			_, err = tape.Backward(tape.Sum(tape.Param(p)))
			require.NoError(t, errors.Join(err, tape.Close()))
			graph, err := b.RT.Capture(b.Ctx, opt.Step)
			require.NoError(t, err)
			for _, momentum := range []float64{0, 0.5, 0.9, 0} {
				require.NoError(t, opt.(interface{ Groups() []*optim.Group }).Groups()[0].SetMomentum(momentum))
				before := tapetest.Read[float64](b, p.Value())
				err := graph.Replay(b.Ctx)
				if (momentum != 0) == (captured != 0) {
					require.NoError(t, err, name)
					require.NotEqual(t, before, tapetest.Read[float64](b, p.Value()), name)
					continue
				}
				require.ErrorIs(t, err, autograd.ErrInvalid, name)
				require.Equal(t, before, tapetest.Read[float64](b, p.Value()), name)
			}
			require.NoError(t, errors.Join(graph.Close(), opt.ZeroGrad(b.Ctx), opt.Close()))
		}
	}
}

// places records which tensors of a state are on the device.
type places struct{ here map[*tensor.Tensor]bool }

func (s *places) Bring(_ context.Context, x *tensor.Tensor) error { s.here[x] = true; return nil }
func (s *places) Ahead(_ context.Context, x *tensor.Tensor) error { s.here[x] = true; return nil }
func (s *places) Leave(_ context.Context, x *tensor.Tensor) error { delete(s.here, x); return nil }

// TestPiecesThatFail: the error counts parameters, not pieces, and no state stays on the device,
// neither of the failed piece nor of the next one, which came early.
func TestPiecesThatFail(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	failure := errors.New("no such kernel")
	for piece, want := range []string{"0 of 4 parameters updated", "1 of 4 parameters updated", "3 of 4 parameters updated"} {
		var ps autograd.Parameters // one in the first piece, two in the second, one in the third
		for i, n := range []int{4, 2, 2, 1} {
			p := b.Parameter(n)
			p.SetGrad(tapetest.Upload(b, make([]float64, n)))
			ps = append(ps, autograd.Named{Name: fmt.Sprint(i), Parameter: p})
		}
		o, pieces := new(byHand), 0
		o.Init(o, "Failing", func(context.Context, []optim.Update) error {
			if pieces++; pieces > piece {
				return failure
			}
			return nil
		})
		o.Fail(o.AddGroup(ps, optim.Options{State: []optim.Slot{{Name: "buffer"}}}))
		s := &places{map[*tensor.Tensor]bool{}}
		require.NoError(t, o.SetStage(b.Ctx, s, 32))
		err := o.Step(b.Ctx)
		require.ErrorIs(t, err, failure)
		require.ErrorContains(t, err, want)
		require.Empty(t, s.here)
		require.NoError(t, errors.Join(o.ZeroGrad(b.Ctx), o.Close()))
	}
}
