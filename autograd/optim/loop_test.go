package optim_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// looped is a training whose steps are taken by a Loop, or by its parts one by one.
type looped struct {
	b    *tapetest.Bench
	in   *nn.Initializer
	x, y []*tensor.Tensor // of the losses of a step
	w    nn.Sequential
	loop optim.Loop
}

func newLooped(b *tapetest.Bench, accumulate int, clip float64, options ...nn.InitOption) *looped {
	in := nn.Init(b.Ctx, b.RT, append(options, nn.Seed(3))...)
	l := &looped{b: b, in: in, w: nn.Sequential{in.Linear(3, 9), nn.Tanh{}, in.Linear(9, 4)}}
	r := rand.New(rand.NewPCG(1, 4))
	for range max(1, accumulate) {
		xs, ys := make([]float64, 15), make([]int, 5)
		for i := range xs {
			xs[i] = r.NormFloat64()
		}
		for i := range ys {
			ys[i] = r.IntN(4)
		}
		l.x, l.y = append(l.x, in.Tensor(xs, 5, 3)), append(l.y, in.Labels(ys, 4))
	}
	adam := nn.Own(in, optim.NewAdam(l.w.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	schedule, err := optim.NewScheduler(adam, optim.ExponentialLR{Gamma: 0.9})
	require.NoError(b.T, errors.Join(err, in.Err(), adam.Prepare(b.Ctx)))
	l.loop = optim.Loop{Optimizer: adam, Accumulate: accumulate, ClipNorm: clip, Scheduler: schedule}
	return l
}

// step calls pass with each of the step's losses.
func (l *looped) step(pass func(t *autograd.Tape, loss *autograd.Variable)) error {
	for i, tape := range l.in.Steps(len(l.x)) {
		pass(tape, tape.CrossEntropy(l.w.Forward(tape, tape.Input(l.x[i])), l.y[i]))
	}
	return l.in.Err()
}

// byParts makes a step without a Loop.
func (l *looped) byParts() error {
	err := l.step(func(t *autograd.Tape, loss *autograd.Variable) {
		_, err := t.Backward(t.MulScalar(loss, 1/float64(len(l.x))))
		t.Fail(err)
	})
	ctx, opt := l.b.Ctx, l.loop.Optimizer
	if l.loop.ClipNorm > 0 {
		err = errors.Join(err, optim.ClipGradNorm(ctx, l.w.Parameters(), l.loop.ClipNorm))
	}
	return errors.Join(err, opt.Step(ctx), l.loop.Scheduler.Step(), opt.ZeroGrad(ctx))
}

func (l *looped) see() (all []any) {
	for _, p := range l.w.Parameters() {
		all = append(all, tapetest.Read[float32](l.b, p.Value()))
	}
	return append(all, l.loop.Optimizer.LR(), l.loop.Scheduler.LastStep(), l.loop.Optimizer.Core().Record().Steps)
}

// TestLoopIsItsParts: eagerly, in the backward pass and captured, a Loop does the same as its
// parts, and the losses stay readable.
func TestLoopIsItsParts(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, c := range []struct {
		accumulate int
		clip       float64
		options    []nn.InitOption
	}{{0, 0, nil}, {1, 0.1, nil}, {2, 0.1, nil}, {4, 0, nil}, {2, 0.1, []nn.InitOption{nn.ComputeDtype(tensor.BFloat16)}}} {
		parts := newLooped(b, c.accumulate, c.clip, c.options...)
		want := [][]any{parts.see()}
		for range 4 {
			require.NoError(t, parts.byParts())
			want = append(want, parts.see())
		}
		require.NotEqual(t, want[0], want[1])
		ways := map[string]func(l *looped) func(*autograd.Tape, *autograd.Variable){
			"Minimize": func(l *looped) func(*autograd.Tape, *autograd.Variable) { return l.loop.Minimize },
			"InBackward": func(l *looped) func(*autograd.Tape, *autograd.Variable) {
				return func(t *autograd.Tape, loss *autograd.Variable) { l.loop.InBackward(t, loss, 1) }
			},
		}
		if c.clip > 0 {
			delete(ways, "InBackward")
		}
		for name, way := range ways {
			eager := newLooped(b, c.accumulate, c.clip, c.options...)
			for i := range 4 {
				require.NoError(t, eager.step(func(tape *autograd.Tape, loss *autograd.Variable) {
					way(eager)(tape, loss)
					require.False(t, math.IsNaN(loss.Item()))
				}))
				require.Equal(t, want[i+1], eager.see(), "%s, %+v, step %d", name, c, i)
			}
			require.NoError(t, eager.in.Close())

			l := newLooped(b, c.accumulate, c.clip, c.options...)
			graph, err := b.RT.Capture(b.Ctx, func(context.Context) error { return l.step(way(l)) })
			require.NoError(t, err)
			require.Equal(t, want[0], l.see(), "a capture runs nothing")
			for i := range 3 {
				require.NoError(t, graph.Replay(b.Ctx))
				require.Equal(t, want[i+1], l.see(), "%s, %+v, replay %d", name, c, i)
			}
			require.NoError(t, l.step(way(l)), "an eager step after the capture")
			require.Equal(t, want[4], l.see())
			require.NoError(t, errors.Join(graph.Close(), l.in.Close()))
		}
		require.NoError(t, parts.in.Close())
	}
}

// TestLoopRefuses: a Loop reports invalid calls as the tape's error, and works afterwards.
func TestLoopRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	l := newLooped(b, 2, 0.1)
	before := l.see()
	for name, c := range map[string]struct {
		loop optim.Loop
		do   func(loop *optim.Loop, tape *autograd.Tape, loss *autograd.Variable)
	}{
		"the optimiser is nil":         {optim.Loop{}, (*optim.Loop).Minimize},
		"Accumulate is -1":             {optim.Loop{Optimizer: l.loop.Optimizer, Accumulate: -1}, (*optim.Loop).Minimize},
		"at most NaN":                  {optim.Loop{Optimizer: l.loop.Optimizer, ClipNorm: math.NaN()}, (*optim.Loop).Minimize},
		"the norm is known at the end": {optim.Loop{Optimizer: l.loop.Optimizer, ClipNorm: 1}, func(loop *optim.Loop, tape *autograd.Tape, loss *autograd.Variable) { loop.InBackward(tape, loss, 0) }},
		"operand 1 is nil":             {optim.Loop{Optimizer: l.loop.Optimizer, Accumulate: 2}, func(loop *optim.Loop, tape *autograd.Tape, _ *autograd.Variable) { loop.Minimize(tape, nil) }},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.do(&c.loop, tape, tape.CrossEntropy(l.w.Forward(tape, tape.Input(l.x[0])), l.y[0]))
		err := tape.Close()
		require.ErrorIs(t, err, autograd.ErrInvalid, name)
		require.ErrorContains(t, err, name)
		for _, p := range l.w.Parameters() {
			require.Nil(t, p.Grad(), name)
		}
		require.Equal(t, before, l.see(), name)
	}
	(&optim.Loop{Optimizer: l.loop.Optimizer}).Minimize(nil, nil)

	// A loss whose backward pass fails does not count: it is computed again.
	var failed [2]bool
	want := newLooped(b, 2, 0.1)
	require.NoError(t, want.byParts())
	for i := 0; i < 2; {
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.CrossEntropy(l.w.Forward(tape, tape.Input(l.x[i])), l.y[i])
		if !failed[i] {
			loss = tape.Add(loss, tape.ReLU(tape.Input(l.x[0]))) // more than one element
		}
		l.loop.Minimize(tape, loss)
		if tape.Close() != nil {
			failed[i] = true
			continue
		}
		i++
	}
	require.Equal(t, [2]bool{true, true}, failed)
	require.Equal(t, want.see(), l.see())

	// Captures of parts of a step.
	one := func(context.Context) error {
		for _, tape := range l.in.Steps(1) {
			l.loop.Minimize(tape, tape.CrossEntropy(l.w.Forward(tape, tape.Input(l.x[0])), l.y[0]))
		}
		return l.in.Err()
	}
	graph, err := b.RT.Capture(b.Ctx, one)
	require.NoError(t, err)
	require.ErrorContains(t, graph.Replay(b.Ctx), "1 of the 2 losses")
	require.NoError(t, errors.Join(l.loop.Optimizer.ZeroGrad(b.Ctx), graph.Close()))
	require.NoError(t, one(b.Ctx))
	_, err = b.RT.Capture(b.Ctx, one)
	require.ErrorIs(t, err, tensor.ErrCapturing)
	require.ErrorContains(t, err, "1 of its 2 losses came before the capture")
	require.NoError(t, one(b.Ctx), "the step goes on")
	require.Equal(t, 2, l.loop.Scheduler.LastStep())
	require.NoError(t, errors.Join(l.in.Close(), want.in.Close()))
}
