package optim_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// all returns one optimiser of each kind.
var all = map[string]func(ps autograd.Parameters) (optim.Optimizer, error){
	"SGD": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(0.5), Momentum: 0.5}))
	},
	"Adam": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{LR: new(0.5), AMSGrad: true}))
	},
	"AdamW": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdamW(ps, optim.AdamConfig{LR: new(0.5)}))
	},
	"Adagrad": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdagrad(ps, optim.AdagradConfig{LR: new(0.5)}))
	},
	"RMSprop": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{LR: new(0.5), Centered: true, Momentum: 0.5}))
	},
}

// TestGroupsHaveOptionsOfTheirOwn: groups have their own rates and decays, and schedules multiply
// each group's own rate.
func TestGroupsHaveOptionsOfTheirOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q := b.Parameter(1), b.Parameter(1)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(t, err)
	require.NoError(t, opt.AddGroup(autograd.Parameters{{Name: "q", Parameter: q}}, optim.SGDConfig{LR: new(0.25), WeightDecay: 2, Maximize: true}))
	b.Step(opt, p, 1)
	b.Step(opt, q, 1)
	assert.Equal(t, []float64{0.5}, tapetest.Read[float64](b, p.Value()))
	assert.Equal(t, []float64{1 - 0.25*(-1+2)}, tapetest.Read[float64](b, q.Value()))

	s, err := optim.NewScheduler(opt, optim.ExponentialLR{0.5})
	require.NoError(t, err)
	require.NoError(t, s.Step())
	assert.Equal(t, []float64{0.25, 0.125}, []float64{opt.Groups()[0].LR(), opt.Groups()[1].LR()})
	assert.Equal(t, 0.25, opt.LR(), "the first group's")
	require.NoError(t, opt.SetLR(3))
	assert.Equal(t, 3.0, opt.Groups()[1].LR(), "all groups'")
	require.NoError(t, opt.Groups()[1].SetLR(4))
	assert.Equal(t, 3.0, opt.LR())
	assert.ErrorIs(t, opt.Groups()[1].SetLR(-1), autograd.ErrInvalid)
	assert.Equal(t, "q", opt.Groups()[1].Parameters()[0].Name)

	err = opt.AddGroup(autograd.Parameters{{Name: "again", Parameter: p}}, optim.SGDConfig{})
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, `optim: AddGroup: invalid argument: parameters "p" and "again" are the same one`)
	require.ErrorIs(t, opt.AddGroup(nil, optim.SGDConfig{}), autograd.ErrInvalid)
	require.ErrorIs(t, opt.AddGroup(autograd.Parameters{{Name: "r", Parameter: b.Parameter(1)}}, optim.SGDConfig{LR: new(-1.0)}), autograd.ErrInvalid)
	require.Len(t, opt.Groups(), 2, "after errors the optimiser is as it was")
	other := tapetest.Open(t, 64<<20)
	require.ErrorIs(t, opt.AddGroup(autograd.Parameters{{Name: "r", Parameter: other.Parameter(1)}}, optim.SGDConfig{}), tensor.ErrRuntime)

	r := b.Parameter(1)
	require.NoError(t, opt.AddGroup(autograd.Parameters{{Name: "r", Parameter: r}}, optim.SGDConfig{LR: new(8.0)}))
	require.NoError(t, s.Step(), "a group that came after the scheduler")
	assert.Equal(t, 2.0, opt.Groups()[2].LR())
	require.ErrorIs(t, opt.Groups()[0].SetMomentum(-1), autograd.ErrInvalid)
	require.NoError(t, opt.Close())
}

// TestGroupsOfEverySort: each group's state has its own size.
func TestGroupsOfEverySort(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, groups := range map[string]func(p, q autograd.Parameters) (optim.Optimizer, error){
		"Adam": func(p, q autograd.Parameters) (optim.Optimizer, error) {
			o, err := tapetest.WithErr(optim.NewAdam(p, optim.AdamConfig{}))
			require.NoError(t, err)
			return o, o.AddGroup(q, optim.AdamConfig{AMSGrad: true})
		},
		"RMSprop": func(p, q autograd.Parameters) (optim.Optimizer, error) {
			o, err := tapetest.WithErr(optim.NewRMSprop(p, optim.RMSpropConfig{Momentum: 0.5}))
			require.NoError(t, err)
			return o, o.AddGroup(q, optim.RMSpropConfig{Centered: true})
		},
		"Adagrad": func(p, q autograd.Parameters) (optim.Optimizer, error) {
			o, err := tapetest.WithErr(optim.NewAdagrad(p, optim.AdagradConfig{}))
			require.NoError(t, err)
			return o, o.AddGroup(q, optim.AdagradConfig{InitialAccumulatorValue: 8, LR: new(1.0)})
		},
	} {
		p, q := b.Parameter(1), b.Parameter(1)
		opt, err := groups(autograd.Parameters{{Name: "p", Parameter: p}}, autograd.Parameters{{Name: "q", Parameter: q}})
		require.NoError(t, err, name)
		b.Step(opt, p, 1)
		b.Step(opt, q, 1)
		if name == "Adagrad" {
			assert.InDelta(t, 1-1.0/3, tapetest.Read[float64](b, q.Value())[0], 1e-9, "a sum that begins with 8")
		}
		require.NoError(t, opt.Close())
	}
}

// TestEveryOptimizerMakesStale: a tape notices that an optimiser of any kind has changed a
// parameter, and a parameter without a gradient is not changed.
func TestEveryOptimizerMakesStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, make := range all {
		p, q := b.Parameter(1), b.Parameter(1)
		opt, err := make(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}})
		require.NoError(t, err)
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(tape.Mul(tape.Param(p), tape.Param(p)))
		b.Step(opt, p, 1)
		_, err = tape.Backward(loss)
		require.ErrorIs(t, err, autograd.ErrStale, name)
		require.Error(t, tape.Close())
		assert.Equal(t, uint64(1), p.Value().Version(), name)
		assert.Zero(t, q.Value().Version(), name)
		require.NoError(t, opt.Close())
	}
}

// TestFrozenParameters: frozen parameters get no gradient, and no step even if they have one, and
// nothing is saved for them.
func TestFrozenParameters(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, make := range all {
		p, q := b.Number(2), b.Number(3)
		ps := autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}
		opt, err := make(ps)
		require.NoError(t, err)
		assert.True(t, q.RequiresGrad())
		q.SetRequiresGrad(false)
		assert.False(t, q.RequiresGrad())
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err = tape.Backward(tape.Sum(tape.Mul(tape.Param(p), tape.Param(q))))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		assert.Nil(t, q.Grad())
		require.Equal(t, []float64{3}, tapetest.Read[float64](b, p.Grad()))
		q.SetGrad(tapetest.Upload(b, []float64{1}))
		require.NoError(t, opt.Prepare(b.Ctx))
		require.NoError(t, opt.Step(b.Ctx))
		assert.Zero(t, q.Value().Version(), name)
		assert.NotZero(t, p.Value().Version(), name)
		live := b.Live()
		ps.SetRequiresGrad(true)
		require.NoError(t, opt.Step(b.Ctx))
		assert.NotZero(t, q.Value().Version(), name)
		assert.Greater(t, b.Live(), live, "%s: a frozen parameter has no state", name)
		require.NoError(t, opt.Close())
		require.NoError(t, opt.ZeroGrad(b.Ctx))
	}
	p := b.Number(2)
	p.SetRequiresGrad(false)
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := tape.Exp(tape.Mul(tape.Param(p), tape.Param(p)))
	_, err := tape.Backward(tape.Sum(y))
	require.ErrorIs(t, err, autograd.ErrNoGrad)
	assert.Empty(t, tape.Nodes(), "nothing is recorded")
	require.Error(t, tape.Close())
}

// TestDetach: a factor that counts as a constant.
func TestDetach(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Number(3)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := tape.Param(p)
	y := tape.Mul(x, x)
	_, err := tape.Backward(tape.Sum(tape.Mul(x, tape.Detach(y))))
	require.NoError(t, err)
	assert.Equal(t, []float64{9}, tapetest.Read[float64](b, p.Grad()))
	require.NoError(t, tape.Close())
	require.NoError(t, p.ZeroGrad(b.Ctx))
	eval := autograd.NoGrad(b.Ctx, b.RT)
	assert.Equal(t, 9.0, eval.Detach(eval.Mul(eval.Param(p), eval.Param(p))).Item())
	require.NoError(t, eval.Close())
}

// TestAccumulation: gradients of several tapes add up, and one step uses the sum.
func TestAccumulation(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(t, err)
	for range 3 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), 2)))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
	}
	require.NoError(t, opt.Step(b.Ctx))
	assert.Equal(t, []float64{1 - 0.5*6}, tapetest.Read[float64](b, p.Value()))
	require.NoError(t, opt.ZeroGrad(b.Ctx))
	require.NoError(t, opt.Close())
}
