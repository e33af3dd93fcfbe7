package parallel_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestParallelIsOneRank: ranks with a part of each batch have the losses of one rank with the whole
// batch, and are bit-identical to each other and to the next run.
func TestParallelIsOneRank(t *testing.T) {
	for name, c := range map[string]parallelTraining{"mlp": mlpCourse.brief(), "cnn": cnnCourse.brief()} {
		t.Run(name, func(t *testing.T) {
			c.alone = true
			want := c.trainOn(t, 1)
			c.alone = false
			for _, n := range []int{1, 2, 3, 4, 8} {
				if n > cisterntest.Ranks(n) {
					break
				}
				got := c.trainOn(t, n)
				requireLossesNear(t, want.losses, got.losses, 1e-5, fmt.Sprintf("%d ranks", n))
				require.Greater(t, len(got.orders), 2, "buckets")
				again := c.trainOn(t, n)
				require.Equal(t, got.losses, again.losses, "%d ranks, once more", n)
				require.Equal(t, got.bits, again.bits, "%d ranks, once more", n)
				if n == 1 {
					require.Equal(t, want.bits, got.bits, "a Parallel of one rank changes nothing")
				}
			}
		})
	}
}

// TestParallelHandsOver: steps in which the communication stream only reduces gradients, for the
// race detector.
func TestParallelHandsOver(t *testing.T) {
	c := mlpCourse
	want := c.trainOn(t, 2)
	c.step = func(s *trainingRank, k int) error {
		xs, ys, shape := s.data(k)
		for _, tape := range s.in.Steps(1) {
			y, err := tensor.FromSlice(s.Ctx, s.RT, ys)
			if err != nil {
				return err
			}
			optim.Minimize(tape, tape.CrossEntropy(s.model.Forward(tape, autograd.Upload(tape, xs, shape...)), y), s.opt)
			if err := errors.Join(tape.Err(), y.Release()); err != nil {
				return err
			}
		}
		return s.in.Err()
	}
	require.Equal(t, want.bits, c.trainOn(t, 2).bits)
}

// TestParallelWaitsOnTheDevice: while one of the two streams of every rank is stopped, the whole
// step is queued on the other, and none of its work runs too early.
func TestParallelWaitsOnTheDevice(t *testing.T) {
	for _, sharding := range append([]parallel.Sharding{parallel.ShardNothing}, shardings...) {
		c := mlpCourse.brief()
		c.cfg.Shard, c.prepare = sharding, true
		ranks := cisterntest.Ranks(3)
		want := c.trainOn(t, ranks)
		for name, stands := range map[string]func(*trainingRank) device.Stream{
			"the runtime's":     func(s *trainingRank) device.Stream { return s.RT.Stream() },
			"the communication": func(s *trainingRank) device.Stream { return streamOf(s.dp) },
		} {
			c.step = func(s *trainingRank, k int) error {
				if k == 0 { // loads kernels, connects ranks, learns the order of the buckets
					return s.eager(k)
				}
				x, y, err := s.batch(k)
				if err == nil {
					err = s.RT.Synchronize(s.Ctx)
				}
				if err != nil {
					return err
				}
				release := cisterntest.Hold(t, stands(s))
				loss, err := s.train(s.Ctx, x, y)
				time.Sleep(2 * time.Millisecond) // work that does not wait runs meanwhile
				release()
				if err == nil {
					err = s.lost(loss)
				}
				return errors.Join(err, loss.Release(), x.Release(), y.Release())
			}
			got := c.trainOn(t, ranks)
			require.Equal(t, want.losses, got.losses, "%s stream stands still, %d", name, sharding)
			require.Equal(t, want.bits, got.bits, "%s stream stands still, %d", name, sharding)
		}
	}
}

// TestParallelBucketsDontCount: with any division into buckets each gradient is the mean in the
// order of the ranks.
func TestParallelBucketsDontCount(t *testing.T) {
	mlp := mlpCourse.brief()
	want := mlp.trainOn(t, cisterntest.Ranks(3))
	for _, cfg := range []parallel.Config{{}, {BucketBytes: 1, FirstBucketBytes: 1}, {BucketBytes: 3000}, {FirstBucketBytes: 1 << 30}} {
		c := mlp
		c.cfg = cfg
		got := c.trainOn(t, cisterntest.Ranks(3))
		require.Equal(t, want.bits, got.bits, "%+v", cfg)
		require.Equal(t, want.losses, got.losses, "%+v", cfg)
	}
}

// crossed is a model whose last layer computes first, so the order of its gradients is not the
// reverse order of its parameters.
type crossed struct{ Late, Early *nn.Linear }

func (m crossed) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable { return m.Late.Forward(t, t.Tanh(m.Early.Forward(t, x))) })
}
func (m crossed) Parameters() autograd.Parameters {
	return nn.ParametersOf(struct{ Late, Early *nn.Linear }(m))
}

// TestParallelBucketsFollowTheBackwardPass: the first step's buckets are in the reverse order of
// the parameters, and the next ones in the order of the final gradients.
func TestParallelBucketsFollowTheBackwardPass(t *testing.T) {
	c := parallelTraining{model: func(in *nn.Initializer) nn.Layer { return crossed{in.Linear(8, 5), in.Linear(6, 8)} }, input: []int{6}, classes: 5, batch: 12, optimizer: adamOf,
		cfg: parallel.Config{BucketBytes: 1, FirstBucketBytes: 1}}
	require.Equal(t, [][]string{{"early.bias"}, {"early.weight"}, {"late.bias"}, {"late.weight"}}, c.trainOn(t, 2).orders)
	c.steps = 3
	require.Equal(t, [][]string{{"late.weight"}, {"late.bias"}, {"early.weight"}, {"early.bias"}}, c.trainOn(t, 2).orders)
}

// TestBucketsAreFullAtTheirSizes: the first bucket is full at FirstBucketBytes, the others at
// BucketBytes.
func TestBucketsAreFullAtTheirSizes(t *testing.T) {
	const layer = 4 * 4 * 4
	c := parallelTraining{input: []int{4}, classes: 4, batch: 4, optimizer: adamOf, cfg: parallel.Config{FirstBucketBytes: layer, BucketBytes: 2 * layer}}
	c.model = func(in *nn.Initializer) nn.Layer {
		var model nn.Sequential
		for range 6 {
			model = append(model, in.Linear(4, 4, nn.NoBias()))
		}
		return model
	}
	require.Equal(t, [][]string{{"5.weight"}, {"4.weight", "3.weight"}, {"2.weight", "1.weight"}, {"0.weight"}}, c.trainOn(t, 2).orders)
}

// TestParallelReducesBesideTheBackwardPass: when the first layer's backward step runs, the last
// layer's gradients have been reduced.
func TestParallelReducesBesideTheBackwardPass(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 2, 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		c := parallelTraining{model: smallMLP, optimizer: adamOf, cfg: parallel.Config{BucketBytes: 1, FirstBucketBytes: 1}, batch: 4, input: []int{20}, classes: 5}
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		if err != nil {
			return err
		}
		reduced := -1
		for _, tape := range s.in.Steps(1) {
			x := s.in.Tensor(make([]float64, 40), 2, 20)
			labels := s.in.Labels([]int{1, 2}, 5)
			mark := func(x *autograd.Variable) *autograd.Variable { // its backward step checks
				return tape.Func("mark", []*autograd.Variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) { return r.RT.Copy(c.Context(), c.Input(0)) },
					func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
						reduced = parallel.ReducedOf(s.dp)
						return []*tensor.Tensor{g}, nil
					})
			}
			m := s.model.(nn.Sequential)
			y := m[1:].Forward(tape, mark(m[:1].Forward(tape, tape.Input(x))))
			if _, err := tape.Backward(tape.CrossEntropy(y, labels)); err != nil {
				return err
			}
		}
		if reduced != 4 { // of 6; the last waits for the end of the pass
			return fmt.Errorf("%d buckets were reduced before the first layer's backward step", reduced)
		}
		return errors.Join(s.in.Err(), s.dp.Err(), s.opt.ZeroGrad(r.Ctx))
	})
	rankGroup.Part()
}

// TestParallelAccumulates: gradients that accumulate without an exchange are those of one larger
// batch.
func TestParallelAccumulates(t *testing.T) {
	const parts = 3
	pass := func(s *trainingRank, k int) error {
		xs, ys, shape := s.data(k)
		for _, tape := range s.in.Steps(1) {
			x, y := autograd.Upload(tape, xs, shape...), s.in.Labels(toInts(ys), s.training.classes)
			loss := tape.MulScalar(tape.CrossEntropy(s.model.Forward(tape, x), y), 1.0/parts)
			if _, err := tape.Backward(loss); err != nil {
				return err
			}
			s.losses = append(s.losses, float32(loss.Item()))
			if err := y.Release(); err != nil {
				return err
			}
		}
		return s.in.Err()
	}
	c := mlpCourse
	c.steps = 4
	c.step = func(s *trainingRank, k int) error {
		for i := range parts {
			exchange := func() error { return pass(s, parts*k+i) }
			if s.dp != nil && i < parts-1 {
				before := parallel.PassesOf(s.dp)
				if err := s.dp.NoSync(exchange); err != nil {
					return err
				}
				if parallel.PassesOf(s.dp) != before {
					return errors.New("NoSync has exchanged")
				}
				continue
			}
			if err := exchange(); err != nil {
				return err
			}
		}
		return errors.Join(s.opt.Step(s.Ctx), s.opt.ZeroGrad(s.Ctx))
	}
	c.alone = true
	want := c.trainOn(t, 1)
	c.alone = false
	for n := 2; n <= cisterntest.Ranks(4); n++ {
		all := c.trainAllOn(t, n)
		for k, l := range want.losses {
			mean := float32(0)
			for _, r := range all {
				mean += r.losses[k] / float32(n)
			}
			require.InDelta(t, l, mean, 1e-5, "%d ranks, pass %d", n, k)
		}
		for r := range all {
			require.Equal(t, all[0].bits, all[r].bits)
		}
	}
}

func toInts(ys []int32) (all []int) {
	for _, y := range ys {
		all = append(all, int(y))
	}
	return all
}

// forked uses one of three layers, by a number.
type forked struct {
	A, B, C *nn.Linear
	which   *int
}

func (m forked) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return []*nn.Linear{m.A, m.B, m.C}[*m.which].Forward(t, x)
}
func (m forked) Parameters() autograd.Parameters {
	return nn.ParametersOf(struct{ A, B, C *nn.Linear }{m.A, m.B, m.C})
}

// TestParallelUnusedParameters: a parameter that some ranks have not used gets the mean with zeros
// for these ranks. One that no rank has used gets no gradient and is not updated.
func TestParallelUnusedParameters(t *testing.T) {
	ranks := cisterntest.Ranks(3)
	rankGroup := tapetest.NewCrew(t, ranks, 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
		which := 0
		m := forked{in.Linear(2, 1), in.Linear(2, 1), in.Linear(2, 1), &which}
		dp, err := parallel.New(r.Ctx, r.Comm, m, parallel.Config{BucketBytes: 1, FirstBucketBytes: 1})
		if err != nil {
			return err
		}
		x := in.Tensor([]float64{1, float64(10 * (r.N + 1))}, 1, 2)
		for step, plan := range [][]int{{0, 1, 0}, {2, 2, 2}, {1, 0, 0}} { // the layer that each rank uses
			which = plan[r.N]
			for _, tape := range in.Steps(1) {
				if _, err := tape.Backward(tape.Sum(m.Forward(tape, tape.Input(x)))); err != nil {
					return err
				}
			}
			for i, layer := range []*nn.Linear{m.A, m.B, m.C} {
				users, sum := 0, float32(0)
				for other, uses := range plan[:ranks] {
					if uses == i {
						users++
						sum += float32(10 * (other + 1))
					}
				}
				g := layer.Weight.Grad()
				if (g != nil) != (users > 0) {
					return fmt.Errorf("step %d: layer %d, which %d ranks have used, has the gradient %v", step, i, users, g)
				}
				if g == nil {
					continue
				}
				got, err := tensor.ToSlice[float32](r.Ctx, g, nil)
				if err != nil {
					return err
				}
				if want := []float32{float32(users) / float32(ranks), sum / float32(ranks)}; got[0] != want[0] || got[1] != want[1] {
					return fmt.Errorf("step %d: layer %d has the gradient %v: want %v", step, i, got, want)
				}
			}
			if err := m.Parameters().ZeroGrad(r.Ctx); err != nil {
				return err
			}
		}
		return errors.Join(in.Err(), dp.Err(), dp.Close(), in.Close())
	})
	rankGroup.Part()
}

// TestParallelBuffers: rank 0's running statistics are those of all ranks, or each rank has its own.
func TestParallelBuffers(t *testing.T) {
	c := mlpCourse
	c.model = func(in *nn.Initializer) nn.Layer {
		return nn.Sequential{in.Linear(20, 6), in.BatchNorm(6), in.Linear(6, 5)}
	}
	c.cfg.VerifyEvery = 3
	all := c.trainAllOn(t, 3)
	require.Equal(t, all[0].bits, all[1].bits)
	require.Equal(t, all[0].bits, all[2].bits)
	c.cfg.LocalBuffers = true
	all = c.trainAllOn(t, 3)
	require.NotEqual(t, all[0].bits, all[1].bits)
}

// TestParallelVerify: the error names the tensor that differs, and the ranks.
func TestParallelVerify(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 4, 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		s, err := mlpCourse.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		if err != nil {
			return err
		}
		if err := errors.Join(s.eager(0), s.dp.Verify(r.Ctx)); err != nil {
			return err
		}
		if r.N == 1 || r.N == 3 {
			w := nn.ParametersOf(s.model)[2].Value()
			values, err := tensor.ToSlice[float32](r.Ctx, w, nil)
			values[17] += 1e-7
			if err = errors.Join(err, tensor.CopyFrom(r.Ctx, w, values)); err != nil {
				return err
			}
		}
		err = s.dp.Verify(r.Ctx)
		if !errors.Is(err, device.ErrMismatch) {
			return fmt.Errorf("Verify: %w", err)
		}
		want := fmt.Sprintf(`parallel: Verify: rank %d of 4: comparing parameters: ranks don't match: "2.weight" of ranks [1 3] is not that of rank 0`, r.N)
		if err.Error() != want {
			return fmt.Errorf("%w\nwant %s", err, want)
		}
		return nil
	})
	rankGroup.Part()
}

// TestVerifyEvery: the third reduced pass is the first one that ends with Verify.
func TestVerifyEvery(t *testing.T) {
	tapetest.NewCrew(t, 2, 64<<20, 0).Each(func(r *tapetest.Rank) (err error) {
		c := mlpCourse
		c.cfg.VerifyEvery = 3
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, nn.ParametersOf(s.model).ZeroGrad(r.Ctx), s.end()) }()
		if err != nil {
			return err
		}
		values := make([]float32, nn.ParametersOf(s.model)[0].Value().Elements())
		values[0] = float32(r.N)
		err = tensor.CopyFrom(r.Ctx, nn.ParametersOf(s.model)[0].Value(), values)
		for k := range 2 {
			err = errors.Join(err, s.dp.NoSync(func() error { return s.pass(k) }), s.pass(k))
		}
		if failed := s.pass(2); !errors.Is(failed, device.ErrMismatch) && !errors.Is(failed, device.ErrAborted) {
			return errors.Join(err, fmt.Errorf("the third pass: %w", failed))
		}
		return err
	})
}

// TestParallelTwoModels: two models on one tape, each with its own communicator, train like one
// model of both.
func TestParallelTwoModels(t *testing.T) {
	train := func(apart bool) []uint32 {
		rankGroup := tapetest.NewCrew(t, cisterntest.Ranks(3), 64<<20, 0)
		seconds := make([]device.Communicator, len(rankGroup.Ranks))
		for i, r := range rankGroup.Ranks {
			seconds[i] = r.Comm
		}
		rankGroup.Meet(0)
		var bits []uint32
		rankGroup.Each(func(r *tapetest.Rank) (err error) {
			in := nn.Init(r.Ctx, r.RT, nn.Seed(uint64(1+r.N)))
			first, second := in.Linear(4, 6), in.Linear(6, 2)
			both := nn.Sequential{first, nn.Tanh{}, second}
			cfg := parallel.Config{BucketBytes: 1, FirstBucketBytes: 1}
			var all []*parallel.Parallel
			if apart {
				for i, m := range []*nn.Linear{first, second} {
					dp, err := parallel.New(r.Ctx, []device.Communicator{r.Comm, seconds[r.N]}[i], m, cfg)
					if err != nil {
						return err
					}
					all = append(all, dp)
				}
			} else {
				dp, err := parallel.New(r.Ctx, r.Comm, both, cfg)
				if err != nil {
					return err
				}
				all = append(all, dp)
			}
			sgd := nn.Own(in, optim.NewSGD(both.Parameters(), optim.SGDConfig{LR: new(0.1), Momentum: 0.9}))
			x := in.Tensor([]float64{1, -2, 0.5, float64(r.N)}, 1, 4)
			for _, tape := range in.Steps(6) {
				optim.Minimize(tape, tape.Sum(tape.Square(both.Forward(tape, tape.Input(x)))), sgd)
			}
			for _, dp := range all {
				err = errors.Join(err, dp.Err(), dp.Verify(r.Ctx), dp.Close())
			}
			if r.N == 0 && err == nil {
				bits, err = (&trainingRank{Rank: r, model: both}).bits()
			}
			return errors.Join(err, in.Close(), seconds[r.N].Close())
		})
		rankGroup.Part()
		return bits
	}
	require.Equal(t, train(false), train(true))
}

// TestParallelOfALossThatIsAParameter: on rank 0 no operation reads the parameter, and its gradient
// of 1 is reduced.
func TestParallelOfALossThatIsAParameter(t *testing.T) {
	c := tapetest.NewCrew(t, 2, 64<<20, 0)
	c.Each(func(r *tapetest.Rank) error {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
		model := struct{ Scale *autograd.Parameter }{in.Parameter([]float64{3})}
		dp, err := parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
		if err != nil {
			return err
		}
		tape := autograd.NewTape(r.Ctx, r.RT)
		loss := tape.Param(model.Scale)
		if r.N == 1 {
			loss = tape.MulScalar(loss, 4)
		}
		_, err = tape.Backward(loss)
		if err == nil {
			assert.Equal(t, []float32{2.5}, tapetest.Read[float32](r.Bench, model.Scale.Grad()), "the mean of 1 and 4")
		}
		return errors.Join(err, tape.Close(), in.Err(), model.Scale.ZeroGrad(r.Ctx), dp.Close(), in.Close())
	})
	c.Part()
}
