package optim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// captured is a training that can be stepped eagerly and by replays. Two of the same plan differ
// only in that.
type captured struct {
	b         *tapetest.Bench
	in        *nn.Initializer
	model     nn.Layer
	opt       optim.Optimizer
	scheduler *optim.Scheduler // stepped in the step, if inside
	inside    bool
	clip      float64
	shapes    map[int]*capturedShape
	pool      *memcache.Pool
	inputs    int
}

// capturedShape is a graph for a number of rows, with its inputs and loss.
type capturedShape struct {
	x, y, loss *tensor.Tensor
	graph      *tensor.Graph
}

// plan is a random model and training.
type plan struct {
	seed             uint64
	inputs, classes  int
	hidden           []int
	dropout          float64
	norm, checkpoint bool
	optimizer        int
	schedule         optim.Schedule
	inside           bool
	clip             float64
	half             bool
}

func newPlan(r *rand.Rand) plan {
	p := plan{seed: r.Uint64(), inputs: 1 + r.IntN(9), classes: 2 + r.IntN(4), optimizer: r.IntN(7), inside: r.IntN(2) == 0,
		norm: r.IntN(3) == 0, checkpoint: r.IntN(4) == 0}
	for range r.IntN(3) {
		p.hidden = append(p.hidden, 1+r.IntN(70))
	}
	if r.IntN(2) == 0 {
		p.dropout = r.Float64()
	}
	if r.IntN(2) == 0 {
		p.clip = math.Exp(r.NormFloat64())
	}
	p.schedule = []optim.Schedule{nil, optim.StepLR{Size: 3}, optim.CosineAnnealingLR{TMax: 40}, optim.OneCycleLR{Max: 0.1, Steps: 10_000}}[r.IntN(4)]
	p.half = r.IntN(3) == 0
	return p
}

func (p plan) start(b *tapetest.Bench) *captured {
	c := &captured{b: b, inside: p.inside, clip: p.clip, shapes: make(map[int]*capturedShape), inputs: p.inputs}
	dtype := tensor.Float32
	if p.half {
		dtype = tensor.BFloat16
	}
	c.in = nn.Init(b.Ctx, b.RT, nn.Seed(p.seed), nn.ComputeDtype(dtype))
	model, at := nn.Sequential{}, p.inputs
	for _, n := range append(p.hidden, p.classes) {
		if at != p.inputs {
			model = append(model, nn.ReLU{})
			if p.norm {
				model = append(model, c.in.BatchNorm(at))
			}
			if p.dropout > 0 {
				model = append(model, nn.Dropout{P: p.dropout})
			}
		}
		model, at = append(model, c.in.Linear(at, n)), n
	}
	c.model = model
	if p.checkpoint {
		c.model = remat.Layer(model)
	}
	ps := nn.ParametersOf(c.model)
	switch p.optimizer {
	case 0:
		c.opt = nn.Own(c.in, optim.NewSGD(ps, optim.SGDConfig{LR: new(0.1)}))
	case 1:
		c.opt = nn.Own(c.in, optim.NewSGD(ps, optim.SGDConfig{LR: new(0.1), Momentum: 0.9, Dampening: 0.2}))
	case 2:
		c.opt = nn.Own(c.in, optim.NewAdam(ps, optim.AdamConfig{LR: new(0.02), WeightDecay: new(0.01)}))
	case 3:
		c.opt = nn.Own(c.in, optim.NewAdamW(ps, optim.AdamConfig{LR: new(0.02), WeightDecay: new(0.1)}))
	case 4:
		c.opt = nn.Own(c.in, optim.NewAdamW(ps, optim.AdamConfig{LR: new(0.02), AMSGrad: true}))
	case 5:
		rms, err := tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{LR: new(0.01), Momentum: 0.5, Centered: true}))
		require.NoError(b.T, err)
		c.opt = rms
	default:
		ada, err := tapetest.WithErr(optim.NewAdagrad(ps, optim.AdagradConfig{LR: new(0.1), LRDecay: 0.1}))
		require.NoError(b.T, err)
		c.opt = ada
	}
	require.NoError(b.T, c.in.Err())
	if p.schedule != nil {
		scheduler, err := optim.NewScheduler(c.opt, p.schedule)
		if errors.Is(err, autograd.ErrInvalid) { // OneCycleLR with an optimiser without momentum
			scheduler, err = optim.NewScheduler(c.opt, optim.ExponentialLR{Gamma: 0.99})
		}
		require.NoError(b.T, err)
		c.scheduler = scheduler
	}
	require.NoError(b.T, c.opt.Prepare(b.Ctx)) // a schedule may have set a momentum
	var err error
	c.pool, err = b.Cache.NewPool(memcache.PoolOptions{})
	require.NoError(b.T, err)
	return c
}

func (c *captured) close() {
	for _, s := range c.shapes {
		require.NoError(c.b.T, errors.Join(s.graph.Close(), s.x.Release(), s.y.Release(), s.loss.Release()))
	}
	require.NoError(c.b.T, errors.Join(c.opt.Close(), c.in.Close(), c.pool.Release(), c.pool.EmptyCache(c.b.Ctx)))
}

// step makes a whole step, as a program writes it. The caller owns the loss.
func (c *captured) step(ctx context.Context, x, y *tensor.Tensor) (loss *tensor.Tensor, err error) {
	for _, tape := range c.in.Steps(1) {
		tape.SetContext(ctx)
		var l *tensor.Tensor
		l, err = tape.Backward(tape.CrossEntropy(c.model.Forward(tape, tape.Input(x)), y))
		if err != nil {
			break
		}
		if c.clip > 0 {
			err = optim.ClipGradNorm(ctx, nn.ParametersOf(c.model), c.clip)
		}
		if err = errors.Join(err, c.opt.Step(ctx)); err == nil && c.inside && c.scheduler != nil {
			err = c.scheduler.Step()
		}
		if err == nil {
			loss, err = c.b.RT.Copy(ctx, l)
		}
		err = errors.Join(err, c.opt.ZeroGrad(ctx))
	}
	return loss, errors.Join(err, c.in.Err())
}

// eager takes a step, and returns its loss.
func (c *captured) eager(xs []float32, ys []int32) float32 {
	x, y := tapetest.Upload(c.b, xs, len(ys), c.inputs), tapetest.Upload(c.b, ys)
	loss, err := c.step(c.b.Ctx, x, y)
	require.NoError(c.b.T, err)
	return c.after(loss, loss.Release)
}

// replay takes a step by the graph for a number of rows, which it captures the first time.
func (c *captured) replay(xs []float32, ys []int32) float32 {
	s := c.shapes[len(ys)]
	if s == nil {
		s = &capturedShape{}
		c.shapes[len(ys)] = s
		var err error
		s.x, err = tensor.FromSlice(c.b.Ctx, c.b.RT, make([]float32, len(xs)), len(ys), c.inputs)
		require.NoError(c.b.T, err)
		s.y, err = tensor.FromSlice(c.b.Ctx, c.b.RT, make([]int32, len(ys)))
		require.NoError(c.b.T, err)
		s.graph, err = c.b.RT.Capture(c.pool.Context(c.b.Ctx), func(ctx context.Context) (err error) {
			s.loss, err = c.step(ctx, s.x, s.y)
			return err
		})
		require.NoError(c.b.T, err)
	}
	require.NoError(c.b.T, errors.Join(tensor.CopyFrom(c.b.Ctx, s.x, xs), tensor.CopyFrom(c.b.Ctx, s.y, ys), s.graph.Replay(c.b.Ctx)))
	return c.after(s.loss, nil)
}

// after reads the loss, and steps the scheduler if the step does not.
func (c *captured) after(loss *tensor.Tensor, release func() error) float32 {
	got, err := tensor.Item[float32](c.b.Ctx, loss)
	require.NoError(c.b.T, err)
	if release != nil {
		require.NoError(c.b.T, release())
	}
	if !c.inside && c.scheduler != nil {
		require.NoError(c.b.T, c.scheduler.Step())
	}
	return got
}

// state returns everything that training changes, as bits.
func (c *captured) state() (all []uint32) {
	add := func(t *tensor.Tensor) {
		if t.Dtype() != tensor.Float32 {
			return
		}
		for _, v := range tapetest.Read[float32](c.b, t) {
			all = append(all, math.Float32bits(v))
		}
	}
	named, err := nn.StateDict(c.model)
	require.NoError(c.b.T, err)
	for _, t := range named {
		add(t.Tensor)
	}
	require.NoError(c.b.T, c.opt.Core().Err())
	for i, ts := range optim.StateOf(c.opt) {
		for _, t := range ts {
			add(t)
		}
		all = append(all, uint32(optim.StepsOf(c.opt)[i]))
	}
	for _, g := range c.opt.Core().Groups() {
		momentum, _ := g.Momentum()
		all = append(all, math.Float32bits(float32(g.LR())), math.Float32bits(float32(momentum)))
	}
	return append(all, math.Float32bits(float32(c.opt.LR())))
}

// TestCapturedStepsAreEagerSteps: replayed steps, and replayed and eager steps in random order, are
// bit-identical to eager steps. Models, optimisers, schedules inside and outside of the step,
// clipping, dropout and batch sizes are random.
func TestCapturedStepsAreEagerSteps(t *testing.T) {
	plans, steps := 60, tapetest.Rounds(60, 12)
	b := tapetest.Open(t, 1<<30)
	for i := range plans {
		if testing.Short() && !slices.Contains([]int{0, 3, 5, 17, 24, 33, 41}, i) { // these have every option
			continue
		}
		r := rand.New(rand.NewPCG(uint64(i), 16))
		p := newPlan(r)
		eager, replayed, mixed := p.start(b), p.start(b), p.start(b)
		sizes := []int{1 + r.IntN(40), 2 + r.IntN(10), 2}
		for step := range steps {
			n := max(2, sizes[r.IntN(1+r.IntN(len(sizes)))])
			xs, ys := make([]float32, n*p.inputs), make([]int32, n)
			for k := range xs {
				xs[k] = float32(r.NormFloat64())
			}
			for k := range ys {
				ys[k] = int32(r.IntN(p.classes))
			}
			want := eager.eager(xs, ys)
			require.Equal(t, math.Float32bits(want), math.Float32bits(replayed.replay(xs, ys)), "plan %d %+v, step %d", i, p, step)
			how := mixed.replay
			if r.IntN(2) == 0 {
				how = mixed.eager
			}
			require.Equal(t, math.Float32bits(want), math.Float32bits(how(xs, ys)), "plan %d %+v, mixed, step %d", i, p, step)
			if r.IntN(10) == 0 {
				require.NoError(t, b.Cache.EmptyCache(b.Ctx))
			}
			if step%10 == 9 || step == steps-1 {
				state := eager.state()
				require.Equal(t, state, replayed.state(), "plan %d %+v, step %d", i, p, step)
				require.Equal(t, state, mixed.state(), "plan %d %+v, mixed, step %d", i, p, step)
			}
		}
		eager.close()
		replayed.close()
		mixed.close()
	}
}

// TestCapturedStepsThatFail: a failed capture leaves gradients, counts and rates unchanged, and the
// step can then be taken eagerly and captured.
func TestCapturedStepsThatFail(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	p := plan{seed: 3, inputs: 4, classes: 3, hidden: []int{8}, dropout: 0.5, optimizer: 2, schedule: optim.StepLR{Size: 2}, inside: true}
	eager, c := p.start(b), p.start(b)
	xs, ys := []float32{1, 2, 3, 4, 5, 6, 7, 8}, []int32{0, 2}
	x, y := tapetest.Upload(b, xs, 2, 4), tapetest.Upload(b, ys)
	before := c.state()
	for name, late := range map[string]func(tape *autograd.Tape, loss *tensor.Tensor) error{
		"ToSlice": func(_ *autograd.Tape, loss *tensor.Tensor) error {
			_, err := tensor.Item[float32](b.Ctx, loss)
			return err
		},
		"spent": func(tape *autograd.Tape, _ *tensor.Tensor) error {
			tape.Input(x) // sticks to the tape; Close passes it to the initialiser
			return tape.Err()
		},
		"none": func(*autograd.Tape, *tensor.Tensor) error { return errors.New("none's own") },
	} {
		_, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error {
			for _, tape := range c.in.Steps(1) {
				tape.SetContext(ctx)
				loss, err := tape.Backward(tape.CrossEntropy(c.model.Forward(tape, tape.Input(x)), y))
				require.NoError(t, err)
				require.NoError(t, errors.Join(c.opt.Step(ctx), c.scheduler.Step(), c.opt.SetLR(77)))
				group := c.opt.Core().Groups()[0]
				require.NoError(t, errors.Join(group.SetLR(78), group.SetMomentum(0.1)))
				if err := late(tape, loss); err != nil {
					return err // with the gradients in place
				}
			}
			return nil
		})
		require.ErrorContains(t, err, name)
		require.NoError(t, c.in.Err(), name)
		for _, p := range nn.ParametersOf(c.model) {
			require.Nil(t, p.Grad(), "%s: a gradient that was never computed", name)
		}
		require.Equal(t, before, c.state(), name)
	}
	for range 3 {
		want := eager.eager(xs, ys)
		require.Equal(t, want, c.eager(xs, ys))
		require.Equal(t, eager.eager(xs, ys), c.replay(xs, ys))
	}
	require.Equal(t, eager.state(), c.state())

	require.NoError(t, c.opt.Core().Err())
	graph := c.shapes[2].graph
	c.opt.Core().Parameters()[0].SetRequiresGrad(false)
	require.ErrorContains(t, graph.Replay(b.Ctx), `parameter "0.weight" was frozen after the capture`)
	c.opt.Core().Parameters()[0].SetRequiresGrad(true)
	require.NoError(t, graph.Replay(b.Ctx))
	require.NoError(t, errors.Join(c.opt.Close(), c.opt.Prepare(b.Ctx)))
	require.ErrorIs(t, graph.Replay(b.Ctx), autograd.ErrInvalid)
	eager.close()
	c.close()

	fresh := p.start(b)
	require.NoError(t, fresh.opt.Close())
	_, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error { _, err := fresh.step(ctx, x, y); return err })
	require.ErrorIs(t, err, tensor.ErrCapturing)
	require.ErrorContains(t, err, `state of parameter "0.weight"`)
	fresh.close()
}

// TestRatesOfReplays: rates that the step sets are set at each replay, in their order, for later
// steps.
func TestRatesOfReplays(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	c := plan{seed: 3, inputs: 4, classes: 3, optimizer: 1}.start(b)
	group := c.opt.Core().Groups()[0]
	graph, err := b.RT.Capture(b.Ctx, func(context.Context) error { return errors.Join(group.SetLR(3), group.SetMomentum(0.25)) })
	require.NoError(t, err)
	momentum, _ := group.Momentum()
	require.Equal(t, []float64{0.1, 0.9}, []float64{group.LR(), momentum})
	for range 2 {
		require.NoError(t, graph.Replay(b.Ctx))
		momentum, _ = group.Momentum()
		require.Equal(t, []float64{3, 0.25}, []float64{group.LR(), momentum})
		require.NoError(t, errors.Join(group.SetLR(5), group.SetMomentum(0.5)))
	}
	require.NoError(t, graph.Close())
	require.NoError(t, new(optim.Group).SetLR(1), "of no optimiser")
	c.close()
}

// TestReplaysRefuseAnotherMomentum: a step with a momentum buffer differs from one without.
func TestReplaysRefuseAnotherMomentum(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, from := range []float64{0, 0.9} {
		c := plan{seed: 3, inputs: 4, classes: 3}.start(b)
		require.NoError(t, c.opt.Close())
		sgd := nn.Own(c.in, optim.NewSGD(nn.ParametersOf(c.model), optim.SGDConfig{Momentum: from}))
		c.opt = sgd
		require.NoError(t, errors.Join(c.in.Err(), sgd.Prepare(b.Ctx)))
		xs, ys := make([]float32, 8), make([]int32, 2)
		c.replay(xs, ys)
		require.NoError(t, sgd.Groups()[0].SetMomentum(0.9-from))
		require.ErrorContains(t, c.shapes[2].graph.Replay(b.Ctx), fmt.Sprintf("momentum %v: a captured step can't gain or lose its momentum", 0.9-from))
		require.NoError(t, sgd.Groups()[0].SetMomentum(from))
		c.replay(xs, ys)
		assert.Equal(t, 2, optim.StepsOf(sgd)[0])
		c.close()
	}
}

// TestReplayedOperandsAreStale: a replay overwrites the tensors of its capture, so a tape that has
// saved them fails.
func TestReplayedOperandsAreStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{3})
	w, err := autograd.NewParameter(tapetest.Upload(b, []float64{1}))
	require.NoError(t, err)
	var out *tensor.Tensor
	graph, err := b.RT.Capture(b.Ctx, func(ctx context.Context) (err error) {
		out, err = b.RT.MulScalar(ctx, x, 2)
		return err
	})
	require.NoError(t, errors.Join(err, graph.Replay(b.Ctx)))
	for _, stale := range []bool{false, true} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(tape.Mul(tape.Param(w), tape.Input(out)))
		if stale {
			require.NoError(t, graph.Replay(b.Ctx))
		}
		_, err := tape.Backward(loss)
		if stale {
			require.ErrorIs(t, err, autograd.ErrStale)
		} else {
			require.NoError(t, err)
			require.Equal(t, []float64{6}, tapetest.Read[float64](b, w.Grad()))
		}
		_ = tape.Close()
	}
	require.NoError(t, errors.Join(graph.Close(), w.ZeroGrad(b.Ctx), w.Release(), x.Release(), out.Release()))
}

// TestStepsOfReplays: an eager step after n replays is the step after n.
func TestStepsOfReplays(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	x := in.Tensor([]float64{1, 2})
	graph, err := b.RT.Capture(b.Ctx, func(context.Context) error {
		for _, tape := range in.Steps(2) {
			tape.Square(tape.Input(x))
		}
		return in.Err()
	})
	require.NoError(t, err)
	require.NoError(t, errors.Join(graph.Replay(b.Ctx), graph.Replay(b.Ctx)))
	for _, tape := range in.Steps(1) {
		assert.EqualValues(t, 5, tape.Square(tape.Input(x)).Value().Label().Step)
	}
	require.NoError(t, errors.Join(graph.Close(), in.Close()))
}
