package autograd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recursive is a schedule as PyTorch computes it: the next rate from the last one.
type recursive func(base, lr float64, step int) float64

// TestSchedulesAgainstRecursion: closed forms are those of the recursions that torch.optim.lr_scheduler runs, far beyond their ends.
func TestSchedulesAgainstRecursion(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		gamma, n, factor, end := 0.5+r.Float64()/2, 1+r.IntN(12), 0.05+0.9*r.Float64(), r.Float64()
		low := r.Float64() / 10
		milestones := []int{r.IntN(20), r.IntN(20), r.IntN(20)}
		for name, c := range map[string]struct {
			schedule Schedule
			next     recursive
		}{
			"StepLR": {StepLR{n, &gamma}, func(_, lr float64, step int) float64 {
				if step == 0 || step%n != 0 {
					return lr
				}
				return lr * gamma
			}},
			"MultiStepLR": {MultiStepLR{milestones, &gamma}, func(_, lr float64, step int) float64 {
				for _, m := range milestones {
					if m == step {
						lr *= gamma
					}
				}
				return lr
			}},
			"ExponentialLR": {ExponentialLR{gamma}, func(_, lr float64, step int) float64 {
				if step == 0 {
					return lr
				}
				return lr * gamma
			}},
			"ConstantLR": {ConstantLR{&factor, &n}, func(_, lr float64, step int) float64 {
				switch step {
				case 0:
					return lr * factor
				case n:
					return lr / factor
				}
				return lr
			}},
			"LinearLR": {LinearLR{&factor, &end, &n}, func(_, lr float64, step int) float64 {
				switch {
				case step == 0:
					return lr * factor
				case step > n:
					return lr
				}
				return lr * (1 + (end-factor)/(float64(n)*factor+float64(step-1)*(end-factor)))
			}},
			"CosineAnnealingLR": {CosineAnnealingLR{n, low}, func(base, lr float64, step int) float64 {
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
			require.NoError(t, checkSchedule(c.schedule, 60))
		}
	}
	assert.Equal(t, 1.0/3, ConstantLR{}.LR(1, 4))
	assert.Equal(t, 1.0, ConstantLR{}.LR(1, 5))
	assert.InDelta(t, 1.0/3+2.0/15, LinearLR{}.LR(1, 1), 1e-15)
	assert.Equal(t, 0.5, ConstantLR{Factor: new(0.5), Iters: new(0)}.LR(1, 7), "a factor of no steps stays")
	assert.Equal(t, 0.5, LinearLR{Start: new(0.5), Iters: new(0)}.LR(1, 7))
	assert.Equal(t, 12.0, LambdaLR(func(step int) float64 { return float64(step) }).LR(3, 4))
}

// TestOneCycle follows the three phases from their definition.
func TestOneCycle(t *testing.T) {
	s := OneCycleLR{Max: 1, Steps: 21, RiseShare: new(0.2857142857142857), Linear: true, Div: new(10.0), FinalDiv: new(100.0), ThreePhase: true}
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

// TestSchedulerCyclesMomentum as PyTorch does: of SGD, also where it had none, and Adam's beta1; Adagrad has none.
func TestSchedulerCyclesMomentum(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(1)
	ps := Parameters{{"p", p}}
	sgd, err := NewSGD(ps, SGDConfig{LR: new(0.1)})
	require.NoError(t, err)
	cycle := OneCycleLR{Max: 1, Steps: 10}
	s, err := NewScheduler(sgd, cycle)
	require.NoError(t, err)
	m, ok := sgd.Groups()[0].Momentum()
	assert.True(t, ok)
	assert.Equal(t, 0.95, m)
	assert.InDelta(t, 0.04, s.LR(), 1e-12)
	b.step(sgd, p, 1)
	require.NoError(t, s.Step())
	b.step(sgd, p, 1)
	m, _ = sgd.Groups()[0].Momentum()
	assert.InDelta(t, 0.90, m, 1e-12)
	assert.InDelta(t, 1-0.04-s.LR()*(m+1), read[float64](b, p.Value())[0], 1e-9, "the momentum is used")
	require.NoError(t, s.SetStep(10))
	before := s.LR()
	require.ErrorIs(t, s.Step(), ErrInvalid, "a step behind the end")
	assert.Equal(t, 10, s.LastStep())
	assert.Equal(t, before, s.LR())

	adam, err := NewAdam(ps, AdamConfig{})
	require.NoError(t, err)
	_, err = NewScheduler(adam, cycle)
	require.NoError(t, err)
	m, _ = adam.Groups()[0].Momentum()
	assert.Equal(t, 0.95, m)
	keep := cycle
	keep.KeepMomentum = true
	adagrad, err := NewAdagrad(ps, AdagradConfig{})
	require.NoError(t, err)
	_, err = NewScheduler(adagrad, cycle)
	require.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, 0.01, adagrad.LR(), "after an error nothing has changed")
	_, err = NewScheduler(adagrad, keep)
	require.NoError(t, err)
	_, err = NewScheduler(adagrad, SequentialLR{[]Schedule{ConstantLR{}, cycle}, []int{4}})
	require.NoError(t, err, "not yet")
	require.NoError(t, errorsOfClose(sgd, adam, adagrad))
}

func errorsOfClose(opts ...Optimizer) error {
	for _, o := range opts {
		if err := o.Close(); err != nil {
			return err
		}
	}
	return nil
}

// TestSequentialSchedulesOfFunctionsAndSlices, which Go can't compare, and of equal ones, of which each has its own steps.
func TestSequentialSchedulesOfFunctionsAndSlices(t *testing.T) {
	b := open(t, 64<<20)
	opt, err := NewSGD(Parameters{{"p", b.parameter(1)}}, SGDConfig{LR: new(1.0)})
	require.NoError(t, err)
	half, twice := LambdaLR(func(int) float64 { return 0.5 }), LambdaLR(func(int) float64 { return 2 })
	miles := MultiStepLR{Milestones: []int{1}}
	s, err := NewScheduler(opt, SequentialLR{[]Schedule{half, twice, miles, miles}, []int{1, 2, 4}})
	require.NoError(t, err)
	for _, want := range []float64{0.5, 2, 1, 0.1, 1, 0.1} {
		assert.InDelta(t, want, opt.LR(), 1e-15, "step %d", s.LastStep())
		require.NoError(t, s.Step())
	}
}

// TestSchedulesRefuse numbers that can't be.
func TestSchedulesRefuse(t *testing.T) {
	b := open(t, 64<<20)
	opt, err := NewSGD(Parameters{{"p", b.parameter(1)}}, SGDConfig{})
	require.NoError(t, err)
	for _, s := range []Schedule{
		StepLR{}, CosineAnnealingLR{}, OneCycleLR{Max: 1}, OneCycleLR{Max: 1, Steps: 3, RiseShare: new(2.0)}, LambdaLR(nil), nil,
		ConstantLR{Factor: new(2.0)}, LinearLR{Start: new(0.0)}, LinearLR{End: new(2.0)}, ExponentialLR{math.NaN()}, SequentialLR{},
		SequentialLR{[]Schedule{ConstantLR{}, nil}, []int{1}}, SequentialLR{[]Schedule{ConstantLR{}, StepLR{}}, []int{1}},
		SequentialLR{[]Schedule{ConstantLR{}}, []int{1}}, SequentialLR{[]Schedule{ConstantLR{}, ConstantLR{}, ConstantLR{}}, []int{2, 1}},
		LambdaLR(func(int) float64 { return -1 }),
	} {
		_, err := NewScheduler(opt, s)
		assert.ErrorIs(t, err, ErrInvalid, "%T %+v", s, s)
	}
	_, err = NewScheduler(nil, ConstantLR{})
	assert.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, 1e-3, opt.LR())
	s, err := NewScheduler(opt, ConstantLR{})
	require.NoError(t, err)
	assert.ErrorIs(t, s.SetStep(-1), ErrInvalid)
}
