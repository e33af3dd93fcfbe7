package optim_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// byHand is SGD with momentum, written with operations of package tensor.
type byHand struct{ optim.Base }

func newByHand(ps autograd.Parameters, lr, momentum float64) *byHand {
	o := new(byHand)
	o.Init(o, "ByHand", o.update)
	o.Fail(o.AddGroup(ps, optim.Options{LR: lr, Momentum: &momentum, State: []optim.Slot{{Name: "buffer", Momentum: true}}}))
	return o
}

func (o *byHand) update(ctx context.Context, us []optim.Update) error {
	for _, u := range us {
		rt, d := u.P.Runtime(), u.G
		if u.Momentum != 0 {
			d = u.State[0]
			if err := errors.Join(scaleInPlace(ctx, d, u.Momentum), rt.AddInPlace(ctx, d, u.G)); err != nil {
				return err
			}
		}
		step, err := rt.MulScalar(ctx, d, -u.LR)
		if err != nil {
			return err
		}
		if err := errors.Join(rt.AddInPlace(ctx, u.P, step), step.Release()); err != nil {
			return err
		}
	}
	return nil
}

func scaleInPlace(ctx context.Context, x *tensor.Tensor, by float64) error {
	y, err := x.Runtime().MulScalar(ctx, x, by)
	if err != nil {
		return err
	}
	return errors.Join(x.Runtime().CopyInPlace(ctx, x, y), y.Release())
}

// ownTraining trains p and q, which has its own rate, with an optimiser from made. After two of
// five steps it continues from a file.
func ownTraining(b *tapetest.Bench, made func(ps autograd.Parameters) optim.Optimizer, addGroup func(optim.Optimizer, autograd.Parameters) error, change func(optim.Optimizer), minimize func(*autograd.Tape, *autograd.Variable, optim.Optimizer)) (all [][]float64) {
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	path := filepath.Join(b.T.TempDir(), "c")
	p, q := in.Uniform(-1, 1, 3), in.Uniform(-1, 1, 3)
	start := func() (optim.Optimizer, *optim.Scheduler) {
		opt := nn.Own(in, made(autograd.Parameters{{Name: "p", Parameter: p}}))
		in.Fail(addGroup(opt, autograd.Parameters{{Name: "q", Parameter: q}}))
		schedule, err := optim.NewScheduler(opt, optim.ExponentialLR{0.5})
		in.Fail(err)
		change(opt)
		return opt, schedule
	}
	opt, schedule := start()
	for step, tape := range in.Steps(5) {
		if step == 2 {
			require.NoError(b.T, checkpoint.Checkpoint{Optimizer: opt, Scheduler: schedule}.Save(b.Ctx, path))
			opt, schedule = start()
			require.NoError(b.T, checkpoint.Checkpoint{Optimizer: opt, Scheduler: schedule}.Load(b.Ctx, path))
		}
		minimize(tape, tape.Sum(tape.Square(tape.Add(tape.Param(p), tape.Square(tape.Param(q))))), opt)
		in.Fail(schedule.Step())
	}
	require.NoError(b.T, in.Err())
	for _, p := range []*autograd.Parameter{p, q} {
		all = append(all, tapetest.Read[float64](b, p.Value()))
	}
	require.NoError(b.T, in.Close())
	return all
}

// TestOptimizerOfOnesOwn: a custom optimiser supports groups, schedules, files, offload and steps
// in the backward pass like SGD, with the same results.
func TestOptimizerOfOnesOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	off := b.Offloader(tensor.OffloadConfig{})
	for name, change := range map[string]func(optim.Optimizer){
		"as it is": func(optim.Optimizer) {},
		"prepared": func(o optim.Optimizer) { require.NoError(t, o.Prepare(b.Ctx)) },
		"offloaded": func(o optim.Optimizer) {
			require.NoError(t, offload.State(b.Ctx, o, off, 1))
		},
	} {
		for way, minimize := range tapetest.Minimizers {
			want := ownTraining(b, func(ps autograd.Parameters) optim.Optimizer {
				return optim.NewSGD(ps, optim.SGDConfig{LR: new(0.5), Momentum: 0.5})
			},
				func(o optim.Optimizer, ps autograd.Parameters) error {
					return o.(*optim.SGD).AddGroup(ps, optim.SGDConfig{LR: new(0.25)})
				}, change, minimize)
			got := ownTraining(b, func(ps autograd.Parameters) optim.Optimizer { return newByHand(ps, 0.5, 0.5) },
				func(o optim.Optimizer, ps autograd.Parameters) error {
					return o.(*byHand).AddGroup(ps, optim.Options{LR: 0.25})
				}, change, minimize)
			for i := range want {
				require.InDeltaSlice(t, want[i], got[i], 1e-15, "%s, %s", name, way)
			}
		}
	}
}

// TestCaptureNeedsStepRule: an update with operations is refused in a capture, because each replay
// would use the capture's learning rate.
func TestCaptureNeedsStepRule(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	p := in.Parameter([]float64{1})
	opt := nn.Own(in, newByHand(autograd.Parameters{{Name: "p", Parameter: p}}, 0.5, 0.5))
	step := func(ctx context.Context) error {
		tape := autograd.NewTape(ctx, b.RT)
		optim.Minimize(tape, tape.Sum(tape.Square(tape.Param(p))), opt)
		return tape.Close()
	}
	require.NoError(t, step(b.Ctx))
	steps := optim.StepsOf(opt)[0]
	_, err := b.RT.Capture(b.Ctx, step)
	require.ErrorIs(t, err, tensor.ErrCapturing)
	require.ErrorContains(t, err, "ByHand step")
	require.ErrorContains(t, err, "update with StepRule")
	require.Equal(t, steps, optim.StepsOf(opt)[0], "no step was taken")
	require.NoError(t, step(b.Ctx))
	require.NoError(t, in.Close())
}

// TestOptimizersThatAreNotMade: every call with an optimiser that was not made returns the reason.
func TestOptimizersThatAreNotMade(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	ps := autograd.Parameters{{Name: "p", Parameter: p}}
	for want, opt := range map[string]optim.Optimizer{
		"the optimiser was not made": new(byHand),
		"no parameters":              newByHand(nil, 1, 0),
		"LR is NaN":                  newByHand(ps, math.NaN(), 0),
		"Momentum is -1":             newByHand(ps, 1, -1),
		"MaxMomentum is -1":          withOptions(ps, optim.Options{LR: 1, MaxMomentum: -1}),
		`slot 1 of 2 has no name`:    withOptions(ps, optim.Options{LR: 1, State: []optim.Slot{{}, {Name: "b"}}}),
		`slot "a" needs a momentum`:  withOptions(ps, optim.Options{LR: 1, State: []optim.Slot{{Name: "a", Momentum: true}, {Name: "b"}}}),
		`slot "c" needs a momentum`:  withOptions(ps, optim.Options{LR: 1, Momentum: new(0.5), State: []optim.Slot{{Name: "c", Momentum: true}, {Name: "b"}}}),
		`two slots are "a"`:          withOptions(ps, optim.Options{LR: 1, State: []optim.Slot{{Name: "a"}, {Name: "a"}}}),
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		optim.Minimize(tape, tape.Sum(tape.Param(p)), opt)
		_, err := optim.NewScheduler(opt, optim.ConstantLR{})
		for _, err := range []error{
			opt.Step(b.Ctx), opt.Prepare(b.Ctx), tape.Close(), err, opt.Core().AddGroup(ps, optim.Options{}),
			offload.State(b.Ctx, opt, nil, 0), checkpoint.Checkpoint{Optimizer: opt}.Save(b.Ctx, filepath.Join(t.TempDir(), "c")),
		} {
			require.ErrorIs(t, err, autograd.ErrInvalid, want)
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, errors.Join(opt.ZeroGrad(b.Ctx), opt.Close()))
	}
	require.NoError(t, p.Release())
}

func withOptions(ps autograd.Parameters, o optim.Options) optim.Optimizer {
	opt := new(byHand)
	opt.Init(opt, "ByHand", opt.update)
	opt.Fail(opt.AddGroup(ps, o))
	return opt
}

// TestOwn: an initialiser returns the error of an object that it owns and closes the others. After
// an error it takes no more objects.
func TestOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	opt := nn.Own(in, optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: in.Ones(2)}}, optim.AdamConfig{}))
	require.NoError(t, opt.Prepare(b.Ctx))
	state := optim.StateOf(opt)[0][0]
	failed := nn.Own(in, optim.NewAdam(nil, optim.AdamConfig{}))
	require.Equal(t, failed.Err(), in.Err())
	late := nn.Own(in, optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: b.Parameter(2)}}, optim.AdamConfig{}))
	require.NoError(t, late.Prepare(b.Ctx))
	require.ErrorIs(t, in.Close(), autograd.ErrInvalid)
	require.True(t, state.Released())
	require.False(t, optim.StateOf(late)[0][0].Released())
	require.NoError(t, errors.Join(late.Close(), late.Parameters().Release()))
}
