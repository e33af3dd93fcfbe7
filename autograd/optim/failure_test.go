package optim_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

type failing = tapetest.Failing

// adamOf returns an optimiser of the weights, which have gradients and the state of one step.
func adamOf(t testing.TB, m *failing) *optim.Adam {
	adam := optim.NewAdam(m.Weights(), optim.AdamConfig{LR: new(0.5), AMSGrad: true})
	require.NoError(t, adam.Err())
	m.Differentiate(adam.Parameters())
	require.NoError(t, adam.Step(m.Ctx))
	return adam
}

// launches is the reason why a step or a clip may be partly done.
const launches = "a device that refuses a launch after the first has done the ones before"

// lost is the reason why a failure of Free is not undone.
var lost = map[string]string{"Free": "memory that the driver does not take back is the cache's until it is closed"}

var partly = map[failtest.Kind]string{failtest.Failed: launches}

// leftBy checks a step or a clip that failed at a launch: no step is counted, and each tensor is as
// before, or as after a success.
func leftBy(m *failing, opt optim.Optimizer, want []any) func(before any, err error) error {
	return func(before any, err error) error {
		now, was := m.SeeOptimizer(opt), before.([]any)
		if len(now) != len(was) {
			return fmt.Errorf("%d things are seen, %d before: %w", len(now), len(was), err)
		}
		for i, x := range now {
			_, record := x.(optim.Record)
			if !reflect.DeepEqual(x, was[i]) && (record || !reflect.DeepEqual(x, want[i])) {
				return fmt.Errorf("%v was %v, and is %v after a success: %w", x, was[i], want[i], err)
			}
		}
		return nil
	}
}

// done returns the state that an optimiser has after a success of do.
func done(t testing.TB, m *failing, opt optim.Optimizer, do func(ctx context.Context) error) []any {
	require.NoError(t, do(m.Ctx))
	want := m.SeeOptimizer(opt)
	require.NoError(t, m.Release(opt))
	return want
}

// inPart returns a trial of an operation that may be partly done after a refused launch.
func inPart(t testing.TB, m *failing, make func() (optim.Optimizer, func(ctx context.Context) error)) failtest.Trial {
	twin, do := make()
	want := done(t, m, twin, do)
	opt, do := make()
	trial := ofOptimizer(m, opt, do)
	trial.Left = leftBy(m, opt, want)
	return trial
}

// ofOptimizer returns a trial of an operation of an optimiser.
func ofOptimizer(m *failing, opt optim.Optimizer, do func(ctx context.Context) error) failtest.Trial {
	return failtest.Trial{
		Do:   do,
		See:  func() any { return m.SeeOptimizer(opt) },
		Undo: func() error { return m.Release(opt) },
	}
}

// steps returns a trial of the first step of an optimiser.
func steps(opt func(ps autograd.Parameters) optim.Optimizer) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		return inPart(t, m, func() (optim.Optimizer, func(ctx context.Context) error) {
			o := opt(m.Weights())
			require.NoError(t, o.Core().Err())
			m.Differentiate(o.Core().Parameters())
			return o, o.Step
		})
	}
}

// adds returns a trial of adding a group to an optimiser.
func adds[O optim.Optimizer](make func(ps autograd.Parameters) O, add func(o O, ps autograd.Parameters) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Weights()
		opt := make(ps[:1])
		require.NoError(t, opt.Core().Err())
		return failtest.Trial{
			Do:   func(context.Context) error { return add(opt, ps[1:]) },
			See:  func() any { return opt.Core().Record().Groups },
			Undo: ps.Release,
		}
	}
}

// sets returns a trial of an operation that only sets numbers.
func sets(set func(adam *optim.Adam) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, func(context.Context) error { return set(adam) })
	}
}

// minimizes returns a trial of a training step on a tape. The gradients are those that Backward
// leaves.
func minimizes(step func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer)) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		return inPart(t, m, func() (optim.Optimizer, func(ctx context.Context) error) {
			adam := adamOf(t, m)
			require.NoError(t, adam.ZeroGrad(m.Ctx))
			return adam, func(ctx context.Context) error {
				tape := autograd.NewTape(ctx, m.RT)
				step(tape, tapetest.Squares(tape, adam.Parameters()), adam)
				err := errors.Join(tape.Err(), tape.Close())
				if err != nil {
					err = errors.Join(err, adam.ZeroGrad(m.Ctx))
				}
				return err
			}
		})
	}
}

// clips returns a trial of a clip of gradients.
func clips(clip func(ctx context.Context, ps autograd.Parameters) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		return inPart(t, m, func() (optim.Optimizer, func(ctx context.Context) error) {
			adam := adamOf(t, m)
			return adam, func(ctx context.Context) error { return clip(ctx, adam.Parameters()) }
		})
	}
}

var failureRows = []failtest.Row[*failing]{
	{Of: "Base.Step SGD", Partly: partly, Make: steps(func(ps autograd.Parameters) optim.Optimizer {
		return optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.9})
	})},
	{Of: "Base.Step Adam", Partly: partly, Make: steps(func(ps autograd.Parameters) optim.Optimizer {
		return optim.NewAdam(ps, optim.AdamConfig{AMSGrad: true})
	})},
	{Of: "Base.Step RMSprop", Partly: partly, Make: steps(func(ps autograd.Parameters) optim.Optimizer {
		return optim.NewRMSprop(ps, optim.RMSpropConfig{Momentum: 0.9, Centered: true})
	})},
	{Of: "Base.Step Adagrad", Partly: partly, Make: steps(func(ps autograd.Parameters) optim.Optimizer {
		return optim.NewAdagrad(ps, optim.AdagradConfig{InitialAccumulatorValue: 0.5})
	})},
	{Of: "StepRule of a Lion", Partly: partly, Make: steps(func(ps autograd.Parameters) optim.Optimizer { return newLion(ps, 0.25) })},
	{Of: "Base.StepOnly", Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, func(ctx context.Context) error { return adam.StepOnly(ctx, []int{1}) })
	}},
	{Of: "Base.Prepare", Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := optim.NewAdam(m.Weights(), optim.AdamConfig{})
		return failtest.Trial{
			Do:   adam.Prepare,
			See:  func() any { return adam.Record().Steps },
			Undo: func() error { return m.Release(adam) },
		}
	}},
	{Of: "Base.ZeroGrad", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, adam.ZeroGrad)
	}},
	{Of: "Base.Close", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, func(context.Context) error { return adam.Close() })
	}},
	{Of: "Base.CheckRecord Base.Restore", Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		r := adam.Record()
		require.NoError(t, adam.Close())
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				return errors.Join(adam.CheckRecord(r), adam.Restore(ctx, r))
			},
			See:  func() any { return adam.LR() },
			Undo: func() error { return m.Release(adam) },
		}
	}},
	{Of: "Base.WithState", Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, func(ctx context.Context) error {
			return adam.WithState(ctx, 1, func() error { return nil })
		})
	}},
	{Of: "Base.SetStage", Make: func(t testing.TB, m *failing) failtest.Trial {
		adam := adamOf(t, m)
		return ofOptimizer(m, adam, func(ctx context.Context) error { return adam.SetStage(ctx, nil, 0) })
	}},
	{Of: "ClipGradNorm", Partly: partly, Make: clips(func(ctx context.Context, ps autograd.Parameters) error {
		return optim.ClipGradNorm(ctx, ps, 0.5)
	})},
	{Of: "ClipGradNormOf", Partly: partly, Make: clips(func(ctx context.Context, ps autograd.Parameters) error {
		norm, err := optim.ClipGradNormOf(ctx, ps, 0.5)
		return errors.Join(err, norm.Release())
	})},
	{Of: "ClipGradValue", Partly: partly, Make: clips(func(ctx context.Context, ps autograd.Parameters) error {
		return optim.ClipGradValue(ctx, ps, 0.5)
	})},
	{Of: "Base.AddGroup", Make: adds(
		func(ps autograd.Parameters) *lion { return newLion(ps, 0.25) },
		func(o *lion, ps autograd.Parameters) error { return o.AddGroup(ps, optim.Options{LR: 0.5}) },
	)},
	{Of: "SGD.AddGroup", Make: adds(
		func(ps autograd.Parameters) *optim.SGD { return optim.NewSGD(ps, optim.SGDConfig{}) },
		func(o *optim.SGD, ps autograd.Parameters) error { return o.AddGroup(ps, optim.SGDConfig{}) },
	)},
	{Of: "Adam.AddGroup", Make: adds(
		func(ps autograd.Parameters) *optim.Adam { return optim.NewAdam(ps, optim.AdamConfig{}) },
		func(o *optim.Adam, ps autograd.Parameters) error { return o.AddGroup(ps, optim.AdamConfig{}) },
	)},
	{Of: "RMSprop.AddGroup", Make: adds(
		func(ps autograd.Parameters) *optim.RMSprop { return optim.NewRMSprop(ps, optim.RMSpropConfig{}) },
		func(o *optim.RMSprop, ps autograd.Parameters) error { return o.AddGroup(ps, optim.RMSpropConfig{}) },
	)},
	{Of: "Adagrad.AddGroup", Make: adds(
		func(ps autograd.Parameters) *optim.Adagrad { return optim.NewAdagrad(ps, optim.AdagradConfig{}) },
		func(o *optim.Adagrad, ps autograd.Parameters) error { return o.AddGroup(ps, optim.AdagradConfig{}) },
	)},
	{Of: "CoreOf Base.SetLR Group.SetLR Group.SetMomentum", Make: sets(func(adam *optim.Adam) error {
		s, err := optim.CoreOf(adam)
		if err != nil {
			return err
		}
		g := s.Groups()[0]
		return errors.Join(s.SetLR(0.25), g.SetLR(0.125), g.SetMomentum(0.5))
	})},
	{Of: "NewScheduler Scheduler.Step Scheduler.SetStep Scheduler.CheckRecord", Make: sets(func(adam *optim.Adam) error {
		s, err := optim.NewScheduler(adam, optim.ExponentialLR{Gamma: 0.5})
		if err != nil {
			return err
		}
		return errors.Join(s.Step(), s.SetStep(3), s.CheckRecord(s.Record()))
	})},
	{Of: "NewReduceLROnPlateau ReduceLROnPlateau.Step ReduceLROnPlateau.CheckRecord", Make: sets(func(adam *optim.Adam) error {
		s, err := optim.NewReduceLROnPlateau(adam, optim.PlateauConfig{Patience: new(0)})
		if err != nil {
			return err
		}
		return errors.Join(s.Step(1), s.Step(1), s.CheckRecord(s.Record()))
	})},
	{Of: "Minimize", Partly: partly, Ends: lost, Make: minimizes(optim.Minimize)},
	{Of: "Loop.Minimize", Partly: partly, Ends: lost, Make: minimizes(func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		(&optim.Loop{Optimizer: opt, ClipNorm: 0.5}).Minimize(t, loss)
	})},
	{Of: "Loop.InBackward", Partly: partly, Ends: lost, Make: minimizes(func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		(&optim.Loop{Optimizer: opt}).InBackward(t, loss, 0)
	})},
	{Of: "InBackward", Partly: partly, Ends: lost, Make: minimizes(func(t *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.InBackward(t, loss, opt, 0)
	})},
}

// TestEveryFailure: whichever driver call, allocation or check of a context fails, an operation of
// an optimiser has done everything or nothing, and succeeds afterwards.
func TestEveryFailure(t *testing.T) {
	if !testing.Short() {
		t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, failureRows) })
	}
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, failureRows) })
}
