package optim_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// recursive is a schedule in PyTorch's form, which computes the next rate from the last one.
type recursive func(base, lr float64, step int) float64

// TestSchedulesAgainstRecursion: the closed forms agree with the recursions of
// torch.optim.lr_scheduler, far beyond their ends.
func TestSchedulesAgainstRecursion(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		gamma, n, factor, end := 0.5+r.Float64()/2, 1+r.IntN(12), 0.05+0.9*r.Float64(), r.Float64()
		low := r.Float64() / 10
		milestones := []int{r.IntN(20), r.IntN(20), r.IntN(20)}
		for name, c := range map[string]struct {
			schedule optim.Schedule
			next     recursive
		}{
			"StepLR": {optim.StepLR{n, &gamma}, func(_, lr float64, step int) float64 {
				if step == 0 || step%n != 0 {
					return lr
				}
				return lr * gamma
			}},
			"MultiStepLR": {optim.MultiStepLR{milestones, &gamma}, func(_, lr float64, step int) float64 {
				for _, m := range milestones {
					if m == step {
						lr *= gamma
					}
				}
				return lr
			}},
			"ExponentialLR": {optim.ExponentialLR{gamma}, func(_, lr float64, step int) float64 {
				if step == 0 {
					return lr
				}
				return lr * gamma
			}},
			"ConstantLR": {optim.ConstantLR{&factor, &n}, func(_, lr float64, step int) float64 {
				switch step {
				case 0:
					return lr * factor
				case n:
					return lr / factor
				}
				return lr
			}},
			"LinearLR": {optim.LinearLR{&factor, &end, &n}, func(_, lr float64, step int) float64 {
				switch {
				case step == 0:
					return lr * factor
				case step > n:
					return lr
				}
				return lr * (1 + (end-factor)/(float64(n)*factor+float64(step-1)*(end-factor)))
			}},
			"CosineAnnealingLR": {optim.CosineAnnealingLR{n, low}, func(base, lr float64, step int) float64 {
				at := func(s int) float64 { return 1 + math.Cos(math.Pi*float64(s)/float64(n)) }
				switch {
				case step == 0:
					return lr
				case (step-1-n)%(2*n) == 0:
					return lr + (base-low)*(1-math.Cos(math.Pi/float64(n)))/2
				}
				return at(step)/at(step-1)*(lr-low) + low
			}},
		} {
			base, lr := 0.3, 0.3
			for step := range 60 {
				lr = c.next(base, lr, step)
				require.InDelta(t, lr, c.schedule.LR(base, step), 1e-9, "%s %+v, step %d", name, c.schedule, step)
			}
			require.NoError(t, optim.CheckSchedule(c.schedule, 60))
		}
	}
	assert.Equal(t, 1.0/3, optim.ConstantLR{}.LR(1, 4))
	assert.Equal(t, 1.0, optim.ConstantLR{}.LR(1, 5))
	assert.InDelta(t, 1.0/3+2.0/15, optim.LinearLR{}.LR(1, 1), 1e-15)
	assert.Equal(t, 0.5, optim.ConstantLR{Factor: new(0.5), Iters: new(0)}.LR(1, 7), "a factor of no steps stays")
	assert.Equal(t, 0.5, optim.LinearLR{Start: new(0.5), Iters: new(0)}.LR(1, 7))
	assert.Equal(t, 12.0, optim.LambdaLR(func(step int) float64 { return float64(step) }).LR(3, 4))
}

// TestOneCycle follows the three phases from their definition.
func TestOneCycle(t *testing.T) {
	s := optim.OneCycleLR{Max: 1, Steps: 21, RiseShare: new(0.2857142857142857), Linear: true, Div: new(10.0), FinalDiv: new(100.0), ThreePhase: true}
	want := map[int][2]float64{0: {0.1, 0.95}, 5: {1, 0.85}, 10: {0.1, 0.95}, 20: {0.001, 0.95}, 15: {0.0505, 0.95}}
	for step, w := range want {
		m, ok := s.Momentum(step)
		assert.True(t, ok)
		assert.InDelta(t, w[0], s.LR(7, step), 1e-12, "step %d", step)
		assert.InDelta(t, w[1], m, 1e-12, "step %d", step)
	}
	s.ThreePhase, s.Linear = false, false
	assert.InDelta(t, 0.1+0.9*(1-math.Cos(math.Pi/5))/2, s.LR(7, 1), 1e-12)
	assert.InDelta(t, 0.001, s.LR(7, 20), 1e-12)
	assert.Equal(t, s.LR(7, 21), s.LR(7, 99))
}

// TestSchedulerCyclesMomentum: as in PyTorch, the momentum of SGD, even if it was 0, and Adam's
// beta1 are cycled; Adagrad has none.
func TestSchedulerCyclesMomentum(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	ps := autograd.Parameters{{Name: "p", Parameter: p}}
	sgd, err := tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(0.1)}))
	require.NoError(t, err)
	cycle := optim.OneCycleLR{Max: 1, Steps: 10}
	s, err := optim.NewScheduler(sgd, cycle)
	require.NoError(t, err)
	m, ok := sgd.Groups()[0].Momentum()
	assert.True(t, ok)
	assert.Equal(t, 0.95, m)
	assert.InDelta(t, 0.04, s.LR(), 1e-12)
	b.Step(sgd, p, 1)
	require.NoError(t, s.Step())
	b.Step(sgd, p, 1)
	m, _ = sgd.Groups()[0].Momentum()
	assert.InDelta(t, 0.90, m, 1e-12)
	assert.InDelta(t, 1-0.04-s.LR()*(m+1), tapetest.Read[float64](b, p.Value())[0], 1e-9, "the momentum is used")
	require.NoError(t, s.SetStep(10))
	before := s.LR()
	require.ErrorIs(t, s.Step(), autograd.ErrInvalid, "a step behind the end")
	assert.Equal(t, 10, s.LastStep())
	assert.Equal(t, before, s.LR())

	adam, err := tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{}))
	require.NoError(t, err)
	_, err = optim.NewScheduler(adam, cycle)
	require.NoError(t, err)
	m, _ = adam.Groups()[0].Momentum()
	assert.Equal(t, 0.95, m)
	keep := cycle
	keep.KeepMomentum = true
	adagrad, err := tapetest.WithErr(optim.NewAdagrad(ps, optim.AdagradConfig{}))
	require.NoError(t, err)
	_, err = optim.NewScheduler(adagrad, cycle)
	require.ErrorIs(t, err, autograd.ErrInvalid)
	assert.Equal(t, 0.01, adagrad.LR(), "after an error nothing has changed")
	_, err = optim.NewScheduler(adagrad, keep)
	require.NoError(t, err)
	_, err = optim.NewScheduler(adagrad, optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}, cycle}, []int{4}})
	require.NoError(t, err, "not yet")
	require.NoError(t, errors.Join(sgd.Close(), adam.Close(), adagrad.Close()))
}

// TestSequentialSchedulesOfFunctionsAndSlices: a SequentialLR may have schedules that Go can't
// compare, and equal schedules, each with its own steps.
func TestSequentialSchedulesOfFunctionsAndSlices(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.SGDConfig{LR: new(1.0)}))
	require.NoError(t, err)
	half, twice := optim.LambdaLR(func(int) float64 { return 0.5 }), optim.LambdaLR(func(int) float64 { return 2 })
	miles := optim.MultiStepLR{Milestones: []int{1}}
	s, err := optim.NewScheduler(opt, optim.SequentialLR{[]optim.Schedule{half, twice, miles, miles}, []int{1, 2, 4}})
	require.NoError(t, err)
	for _, want := range []float64{0.5, 2, 1, 0.1, 1, 0.1} {
		assert.InDelta(t, want, opt.LR(), 1e-15, "step %d", s.LastStep())
		require.NoError(t, s.Step())
	}
}

// TestSchedulesRefuse: invalid values are refused.
func TestSchedulesRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.SGDConfig{}))
	require.NoError(t, err)
	for _, s := range []optim.Schedule{
		optim.StepLR{}, optim.CosineAnnealingLR{}, optim.CosineAnnealingWarmRestarts{}, optim.CosineAnnealingWarmRestarts{T0: 1, TMult: -1}, optim.OneCycleLR{Max: 1}, optim.OneCycleLR{Max: 1, Steps: 3, RiseShare: new(2.0)}, optim.LambdaLR(nil), nil,
		optim.ConstantLR{Factor: new(2.0)}, optim.LinearLR{Start: new(0.0)}, optim.LinearLR{End: new(2.0)}, optim.ExponentialLR{math.NaN()}, optim.SequentialLR{},
		optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}, nil}, []int{1}}, optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}, optim.StepLR{}}, []int{1}},
		optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}}, []int{1}}, optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}, optim.ConstantLR{}, optim.ConstantLR{}}, []int{2, 1}},
		optim.LambdaLR(func(int) float64 { return -1 }),
	} {
		_, err := optim.NewScheduler(opt, s)
		assert.ErrorIs(t, err, autograd.ErrInvalid, "%T %+v", s, s)
	}
	_, err = optim.NewScheduler(nil, optim.ConstantLR{})
	assert.ErrorIs(t, err, autograd.ErrInvalid)
	assert.Equal(t, 1e-3, opt.LR())
	s, err := optim.NewScheduler(opt, optim.ConstantLR{})
	require.NoError(t, err)
	assert.ErrorIs(t, s.SetStep(-1), autograd.ErrInvalid)
}

// pytorchOneCycle returns the rate and the momentum of torch.optim.lr_scheduler.OneCycleLR.get_lr
// at a step.
func pytorchOneCycle(s optim.OneCycleLR, step int) (lr, momentum float64) {
	first := s.Max / tapetest.ValueOr(s.Div, 25)
	last, n, share := first/tapetest.ValueOr(s.FinalDiv, 1e4), float64(s.Steps), tapetest.ValueOr(s.RiseShare, 0.3)
	high, low := tapetest.ValueOr(s.MaxMomentum, 0.95), tapetest.ValueOr(s.BaseMomentum, 0.85)
	ends := []float64{share*n - 1, n - 1}
	lrs, momenta := []float64{first, s.Max, last}, []float64{high, low, high}
	if s.ThreePhase {
		ends, lrs, momenta = []float64{share*n - 1, 2*share*n - 2, n - 1}, []float64{first, s.Max, first, last}, []float64{high, low, high, high}
	}
	anneal := func(start, end, pct float64) float64 {
		if s.Linear {
			return (end-start)*pct + start
		}
		return end + (start-end)/2*(math.Cos(math.Pi*pct)+1)
	}
	start := 0.0
	for i, end := range ends {
		if float64(step) <= end || i == len(ends)-1 {
			pct := (float64(step) - start) / (end - start)
			return anneal(lrs[i], lrs[i+1], pct), anneal(momenta[i], momenta[i+1], pct)
		}
		start = end
	}
	panic("no phase")
}

// TestRefusalHasTheNumber: the error has the number that the caller gave.
func TestRefusalHasTheNumber(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	sgd := nn.Own(in, optim.NewSGD(in.Linear(1, 1).Parameters(), optim.SGDConfig{LR: new(0.1)}))
	_, err := optim.NewScheduler(sgd, optim.CosineAnnealingWarmRestarts{T0: 1, TMult: -1})
	require.ErrorContains(t, err, "TMult is -1: want 0 or more")
	require.NoError(t, in.Close())
}

// TestSchedulesForTheirWholeLength: the documented loop, which calls Step after each of a
// schedule's steps, ends without an error, and the rates of the steps are PyTorch's. The rate after
// the last step is PyTorch's too, unless that is negative.
func TestSchedulesForTheirWholeLength(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ps := autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}
	run := func(name string, opt optim.Optimizer, s optim.Schedule, n int, rate func(step int) float64) {
		scheduler, err := optim.NewScheduler(opt, s)
		require.NoError(t, err, name)
		for step := range n {
			require.Equal(t, max(0, rate(step)), scheduler.LR(), "%s, step %d of %d", name, step, n)
			require.NoError(t, scheduler.Step(), "%s, step %d of %d", name, step+1, n)
		}
		require.Equal(t, max(0, rate(n)), scheduler.LR(), "%s, after %d steps", name, n)
	}
	cycled, negative := 0, 0
	for n := 2; n < 40; n++ {
		for _, linear := range []bool{false, true} {
			for _, three := range []bool{false, true} {
				for _, share := range []float64{0, 0.05, 0.3, 0.45, 0.5, 0.77, 0.999} {
					s := optim.OneCycleLR{Max: 0.7, Steps: n, Linear: linear, ThreePhase: three, RiseShare: &share, FinalDiv: new(1e20), BaseMomentum: new(0.1), MaxMomentum: new(0.99)}
					opt, err := tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{}))
					require.NoError(t, err)
					run("OneCycleLR", opt, s, n, func(step int) float64 {
						lr, momentum := pytorchOneCycle(s, step)
						if math.IsNaN(lr) { // PyTorch divides by 0 in a rise of one step
							return opt.LR()
						}
						if step < n {
							now, _ := opt.Groups()[0].Momentum()
							require.Equal(t, momentum, now)
							require.GreaterOrEqual(t, lr, 0.0)
						} else if lr < 0 {
							negative++
						}
						return lr
					})
					require.NoError(t, opt.Close())
					cycled++
				}
			}
		}
	}
	require.Greater(t, negative, cycled/4, "linear cycles have a negative rate after the last step")

	base, third := 0.3, 1.0/3
	for name, tt := range map[string]struct {
		s    optim.Schedule
		rate func(step float64) float64
	}{
		"StepLR":              {optim.StepLR{Size: 3}, func(k float64) float64 { return base * math.Pow(0.1, math.Floor(k/3)) }},
		"MultiStepLR":         {optim.MultiStepLR{Milestones: []int{2, 7}}, func(k float64) float64 { return base * math.Pow(0.1, math.Floor(min(k, 2)/2)+math.Floor(min(k, 7)/7)) }},
		"ExponentialLR":       {optim.ExponentialLR{0.9}, func(k float64) float64 { return base * math.Pow(0.9, k) }},
		"ConstantLR":          {optim.ConstantLR{Iters: new(49)}, func(k float64) float64 { return base * third }},
		"LinearLR to 0":       {optim.LinearLR{Start: new(0.1), End: new(0.0), Iters: new(48)}, func(k float64) float64 { return base * (0.1 + (0-0.1)*min(k, 48)/48) }},
		"LinearLR":            {optim.LinearLR{Iters: new(49)}, func(k float64) float64 { return base * (third + (1-third)*k/49) }},
		"CosineAnnealingLR":   {optim.CosineAnnealingLR{TMax: 49}, func(k float64) float64 { return 0 + (base-0)*(1+math.Cos(math.Pi*k/49))/2 }},
		"LambdaLR":            {optim.LambdaLR(func(step int) float64 { return 1 / float64(1+step) }), func(k float64) float64 { return base * (1 / (1 + k)) }},
		"SequentialLR":        {optim.SequentialLR{[]optim.Schedule{optim.ConstantLR{}, optim.OneCycleLR{Max: 1, Steps: 45, Linear: true}}, []int{4}}, nil},
		"a rise of all steps": {optim.OneCycleLR{Max: 1, Steps: 49, RiseShare: new(1.0)}, nil},
		"a rise of one step":  {optim.OneCycleLR{Max: 1, Steps: 49, RiseShare: new(1.0 / 49)}, nil},
		"one step":            {optim.OneCycleLR{Max: 1, Steps: 1, Linear: true}, nil},
	} {
		opt, err := tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(base)}))
		require.NoError(t, err)
		n, rate := 48, func(step int) float64 { return tt.rate(float64(step)) }
		if name == "one step" {
			n = 1
		}
		for end := n + 1; tt.rate != nil && n < end; n++ { // to the last step, and to the one after it
			run(name, opt, tt.s, n, rate)
			require.NoError(t, opt.SetLR(base))
		}
		if tt.rate == nil { // no formula, because PyTorch divides by zero or has no such end
			s, err := optim.NewScheduler(opt, tt.s)
			require.NoError(t, err, name)
			for range n + min(1, n-1) {
				require.NoError(t, s.Step(), name)
			}
		}
		require.NoError(t, opt.Close())
	}
}

// TestSequentialSchedulesBeginAnew: random schedules run one after another, each from its own step
// 0. Milestones may be equal; a schedule between equal ones has no step.
func TestSequentialSchedulesBeginAnew(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	type row struct {
		lr, momentum float64
		ok           bool
	}
	cycled := 0
	for range 200 {
		var s optim.SequentialLR
		var want []row
		n := 1 + random.IntN(4)
		for i := range n {
			one := []optim.Schedule{
				optim.StepLR{Size: 1 + random.IntN(3)}, optim.ExponentialLR{Gamma: 0.9}, optim.LinearLR{}, optim.OneCycleLR{Max: 1, Steps: 12},
				optim.OneCycleLR{Max: 2, Steps: 9, Linear: true}, optim.OneCycleLR{Max: 1, Steps: 10, KeepMomentum: true},
			}[random.IntN(6)]
			s.Schedules = append(s.Schedules, one)
			for step := range random.IntN(9) {
				r := row{lr: one.LR(0.3, step)}
				if m, ok := one.(optim.MomentumSchedule); ok {
					if r.momentum, r.ok = m.Momentum(step); r.ok && i > 0 && step > 0 {
						cycled++
					}
				}
				want = append(want, r)
			}
			if i+1 < n {
				s.Milestones = append(s.Milestones, len(want))
			}
		}
		for step, w := range want {
			got := row{lr: s.LR(0.3, step)}
			got.momentum, got.ok = s.Momentum(step)
			require.Equal(t, w, got, "step %d of %+v", step, s)
		}
	}
	require.Greater(t, cycled, 100)
	_, ok := optim.SequentialLR{}.Momentum(3)
	require.False(t, ok)
	require.Equal(t, 0.3, optim.SequentialLR{}.LR(0.3, 3))
}
