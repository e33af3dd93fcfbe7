package optim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestMinimizeOfOneOptimizer: Minimize does not change the gradients of parameters that it does not
// update, whether they accumulate for another optimiser or don't exist. It updates parameters of
// both optimisers, and leaves keep their gradients.
func TestMinimizeOfOneOptimizer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, minimize := range tapetest.Minimizers {
		in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
		generator, critic, both, fresh := in.Parameter([]float64{2}), in.Parameter([]float64{3}), in.Parameter([]float64{5}), in.Parameter([]float64{7})
		gOpt := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "g", Parameter: generator}, {Name: "b", Parameter: both}}, optim.SGDConfig{LR: new(1.0)}))
		cOpt := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "c", Parameter: critic}, {Name: "b", Parameter: both}, {Name: "f", Parameter: fresh}}, optim.SGDConfig{LR: new(1.0)}))
		require.NoError(t, in.Err())
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Add(tape.Param(critic), tape.Param(both)), 10)))
		require.NoError(t, errors.Join(err, tape.Close()))
		kept := critic.Grad()

		loss := func(tape *autograd.Tape) *autograd.Variable { // the gradients are 3, 2, 1 and 4
			return tape.Sum(tape.Add(tape.Mul(tape.Param(generator), tape.Param(critic)), tape.Add(tape.Param(both), tape.MulScalar(tape.Param(fresh), 4))))
		}
		tape = autograd.NewTape(b.Ctx, b.RT)
		leaf := tape.Leaf(tapetest.Upload(b, []float64{1}))
		minimize(tape, tape.Sum(tape.Mul(leaf, loss(tape))), gOpt)
		require.NoError(t, tape.Err(), name)
		require.NotNil(t, leaf.Grad())
		require.NoError(t, tape.Close())
		require.Equal(t, []float64{2 - 3}, tapetest.Read[float64](b, generator.Value()), name)
		require.Equal(t, []float64{5 - 11}, tapetest.Read[float64](b, both.Value()), "its own, with what had added up")
		require.Same(t, kept, critic.Grad(), name)
		require.Equal(t, []float64{10}, tapetest.Read[float64](b, kept), name)
		require.Nil(t, fresh.Grad(), name)
		require.Nil(t, both.Grad(), name)

		// They also exist after an error and after a panic of the program.
		tape = autograd.NewTape(b.Ctx, b.RT)
		minimize(tape, tape.Detach(loss(tape)), gOpt)
		require.ErrorIs(t, tape.Close(), autograd.ErrNoGrad, name)
		require.Same(t, kept, critic.Grad(), name)
		tape = autograd.NewTape(b.Ctx, b.RT)
		bad := tape.Func("bad", []*autograd.Variable{loss(tape)}, func(c *autograd.Call) (*tensor.Tensor, error) { return b.RT.Share(c.Context(), c.Input(0)) },
			func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error) { panic("mine") })
		require.PanicsWithValue(t, "mine", func() { minimize(tape, bad, gOpt) })
		tape.Close()
		require.Same(t, kept, critic.Grad(), name)

		// The critic's own step uses and frees them.
		tape = autograd.NewTape(b.Ctx, b.RT)
		minimize(tape, loss(tape), cOpt)
		require.NoError(t, tape.Close(), name)
		require.Equal(t, []float64{3 - 10 + 1}, tapetest.Read[float64](b, critic.Value()), name)
		require.Equal(t, []float64{-1}, tapetest.Read[float64](b, generator.Value()), name)
		for _, p := range []*autograd.Parameter{generator, critic, both, fresh} {
			require.Nil(t, p.Grad(), name)
		}
		require.NoError(t, in.Close())
	}
}

// TestCapturedMinimizeOfOneOptimizer: a replay does not change the gradients of other parameters
// either.
func TestCapturedMinimizeOfOneOptimizer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	generator, critic, fresh := in.Parameter([]float64{0}), in.Parameter([]float64{3}), in.Parameter([]float64{7})
	opt := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "g", Parameter: generator}}, optim.SGDConfig{LR: new(1.0)}))
	for _, tape := range in.Steps(1) {
		_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(critic), 10)))
		require.NoError(t, err)
	}
	kept := critic.Grad()
	graph, err := b.RT.Capture(b.Ctx, func(context.Context) error {
		for _, tape := range in.Steps(1) {
			optim.Minimize(tape, tape.Sum(tape.Mul(tape.Param(generator), tape.Add(tape.Param(critic), tape.Param(fresh)))), opt)
		}
		return in.Err()
	})
	require.NoError(t, err)
	for k := range 3 {
		require.NoError(t, graph.Replay(b.Ctx))
		require.Equal(t, []float64{-10 * float64(k+1)}, tapetest.Read[float64](b, generator.Value()))
		require.Same(t, kept, critic.Grad())
		require.Equal(t, []float64{10}, tapetest.Read[float64](b, kept))
		require.Nil(t, fresh.Grad())
	}
	require.NoError(t, errors.Join(graph.Close(), in.Close()))
}

// twoOptimizers embeds one optimiser, and its Step also steps another one.
type twoOptimizers struct {
	*optim.SGD
	other *optim.SGD
}

func (o twoOptimizers) Step(ctx context.Context) error {
	return errors.Join(o.SGD.Step(ctx), o.other.Step(ctx))
}

// TestMinimizeOfAnUnknownOptimizer: an optimiser that embeds another may update parameters of both,
// so gradients of Backward stay unless its ZeroGrad frees them.
func TestMinimizeOfAnUnknownOptimizer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	p, q := in.Parameter([]float64{1}), in.Parameter([]float64{1})
	two := twoOptimizers{nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(1.0)})), nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "q", Parameter: q}}, optim.SGDConfig{LR: new(2.0)}))}
	for _, tape := range in.Steps(1) {
		optim.Minimize(tape, tape.Sum(tape.Add(tape.Param(p), tape.Param(q))), two)
	}
	require.NoError(t, in.Err())
	require.Equal(t, []float64{0, -1}, append(tapetest.Read[float64](b, p.Value()), tapetest.Read[float64](b, q.Value())...))
	require.NoError(t, in.Close())
}

// adversaries are two models, of which the second one reads the first one's results, and a layer
// that only one rank uses.
type adversaries struct{ G, C, Once *nn.Linear }

// train takes steps of both: the second one's gradient is the sum of two backward passes, between
// which the first one steps.
func (m *adversaries) train(b *tapetest.Bench, in *nn.Initializer, inputs [][]float64, noSync func(func() error) error) error {
	gOpt := nn.Own(in, optim.NewSGD(m.G.Parameters(), optim.SGDConfig{LR: new(0.1), Momentum: 0.9}))
	cOpt := nn.Own(in, optim.NewSGD(m.C.Parameters(), optim.SGDConfig{LR: new(0.1), Momentum: 0.9}))
	loss := func(tape *autograd.Tape) *autograd.Variable {
		var sum *autograd.Variable
		for _, x := range inputs {
			one := tape.Sum(tape.Square(m.C.Forward(tape, m.G.Forward(tape, autograd.Upload(tape, x, 1, 3)))))
			if x[2] == 0 { // of rank 0
				one = tape.Add(one, tape.Sum(m.Once.Forward(tape, autograd.Upload(tape, x[:2], 1, 2))))
			}
			if sum != nil {
				one = tape.Add(sum, one)
			}
			sum = one
		}
		return tape.MulScalar(sum, 1/float64(len(inputs)))
	}
	for range 3 {
		err := noSync(func() error {
			tape := autograd.NewTape(b.Ctx, b.RT)
			_, err := tape.Backward(loss(tape))
			return errors.Join(err, m.G.Parameters().ZeroGrad(b.Ctx), m.Once.Parameters().ZeroGrad(b.Ctx), tape.Close())
		})
		if err != nil {
			return err
		}
		kept := m.C.Weight.Grad()
		before := tapetest.Read[float64](b, kept)
		tape := autograd.NewTape(b.Ctx, b.RT)
		optim.Minimize(tape, loss(tape), gOpt)
		if err := tape.Close(); err != nil {
			return err
		}
		assert.Same(b.T, kept, m.C.Weight.Grad())
		assert.Equal(b.T, before, tapetest.Read[float64](b, kept), "of this rank alone")
		tape = autograd.NewTape(b.Ctx, b.RT)
		optim.Minimize(tape, loss(tape), cOpt)
		if err := tape.Close(); err != nil {
			return err
		}
		for _, p := range nn.ParametersOf(m) {
			assert.False(b.T, optim.HasGrad(p.Parameter), p.Name)
		}
	}
	return errors.Join(in.Err(), gOpt.Close(), cOpt.Close())
}

// TestMinimizeOfAParallel: gradients of other parameters stay on this rank until their own step,
// with any sharding, so the training equals that of one rank with the batches of all.
func TestMinimizeOfAParallel(t *testing.T) {
	ranks := cisterntest.Ranks(2)
	var inputs [][]float64
	for n := range ranks {
		inputs = append(inputs, []float64{1, -2, float64(n)})
	}
	made := func(b *tapetest.Bench) (*nn.Initializer, *adversaries) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
		return in, &adversaries{in.Linear(3, 3), in.Linear(3, 1), in.Linear(2, 2)}
	}
	numbers := func(b *tapetest.Bench, m *adversaries) (all []float64) {
		for _, p := range nn.ParametersOf(m) {
			all = append(all, tapetest.Read[float64](b, p.Value())...)
		}
		return all
	}
	b := tapetest.Open(t, 64<<20)
	in, m := made(b)
	require.NoError(t, m.train(b, in, inputs, func(f func() error) error { return f() }))
	want := numbers(b, m)
	require.NoError(t, in.Close())
	for _, shard := range []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients} {
		crew := tapetest.NewCrew(t, ranks, 64<<20, 0)
		crew.Each(func(r *tapetest.Rank) error {
			in, m := made(r.Bench)
			dp, err := parallel.New(r.Ctx, r.Comm, m, parallel.Config{Shard: shard, BucketBytes: 1, FirstBucketBytes: 1})
			if err != nil {
				return err
			}
			err = m.train(r.Bench, in, inputs[r.N:r.N+1], dp.NoSync)
			if err == nil {
				assert.InDeltaSlice(t, want, numbers(r.Bench, m), 1e-12, "%d", shard)
			}
			return errors.Join(err, dp.Err(), dp.Close(), in.Close())
		})
		crew.Part()
	}
}

// TestMinimizePutsPartsOfGradientsBack: this rank's part of a gradient that an earlier pass has
// reduced survives the step of an optimiser that does not update the parameter.
func TestMinimizePutsPartsOfGradientsBack(t *testing.T) {
	crew := tapetest.NewCrew(t, cisterntest.Ranks(2), 64<<20, 0)
	defer crew.Part()
	crew.Each(func(r *tapetest.Rank) error {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
		g, c := in.Linear(3, 3), in.Linear(3, 2)
		dp, err := parallel.New(r.Ctx, r.Comm, nn.Sequential{g, c}, parallel.Config{Shard: parallel.ShardGradients})
		if err != nil {
			return err
		}
		opt := nn.Own(in, optim.NewSGD(g.Parameters(), optim.SGDConfig{LR: new(0.1)}))
		part := func() *tensor.Tensor {
			sh, _ := autograd.Attached[optim.Sharded](c.Weight)
			return sh.PartGrad()
		}
		var kept *tensor.Tensor
		var before []float64
		for step, tape := range in.Steps(2) {
			loss := tape.Sum(tape.Square(c.Forward(tape, g.Forward(tape, autograd.Upload(tape, []float64{1, -2, 3}, 1, 3)))))
			if step > 0 {
				optim.Minimize(tape, loss, opt)
				continue
			}
			_, err = tape.Backward(loss)
			err = errors.Join(err, g.Parameters().ZeroGrad(r.Ctx))
			kept, before = part(), tapetest.Read[float64](r.Bench, part())
		}
		assert.Same(t, kept, part())
		assert.Equal(t, before, tapetest.Read[float64](r.Bench, kept))
		return errors.Join(err, in.Err(), dp.Err(), dp.Close(), in.Close())
	})
}
