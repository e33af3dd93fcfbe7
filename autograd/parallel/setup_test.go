package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// parallelTraining describes a training of several ranks.
type parallelTraining struct {
	model     func(*nn.Initializer) nn.Layer
	input     []int // of a sample
	classes   int
	batch     int // rows of all ranks
	steps     int
	cfg       parallel.Config
	alone     bool // without a Parallel
	optimizer func(*nn.Initializer, autograd.Parameters) optim.Optimizer
	clip      float64
	prepare   bool // allocate the optimiser's state before the first step
	schedule  optim.Schedule
	options   []nn.InitOption
	reset     bool // all steps are on one tape
	// step takes a step instead of train; may be nil.
	step func(s *trainingRank, k int) error
}

// trainingRank is a rank of a parallel training.
type trainingRank struct {
	*tapetest.Rank
	training  *parallelTraining
	in        *nn.Initializer
	model     nn.Layer
	opt       optim.Optimizer
	scheduler *optim.Scheduler
	dp        *parallel.Parallel
	losses    []float32      // the mean of all ranks', of each step
	kept      *autograd.Tape // that is reset

	graph      *tensor.Graph // of captured steps, with its inputs and its result
	x, y, loss *tensor.Tensor
}

func adamOf(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
	return nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{LR: new(0.01)}))
}

func (c *parallelTraining) begin(r *tapetest.Rank) (s *trainingRank, err error) {
	s = &trainingRank{Rank: r, training: c, in: nn.Init(r.Ctx, r.RT, append(c.options, nn.Seed(uint64(7+100*r.N)))...)}
	s.model = c.model(s.in)
	params := nn.ParametersOf(s.model)
	if err := s.in.Err(); err != nil {
		return s, err
	}
	if !c.alone {
		if s.dp, err = parallel.New(r.Ctx, r.Comm, s.model, c.cfg); err != nil {
			return s, err
		}
	}
	s.opt = c.optimizer(s.in, params)
	if err := s.in.Err(); err != nil {
		return s, err
	}
	if c.prepare {
		if err := s.opt.Prepare(r.Ctx); err != nil {
			return s, err
		}
	}
	if c.schedule != nil {
		s.scheduler, err = optim.NewScheduler(s.opt, c.schedule)
	}
	return s, err
}

func (s *trainingRank) end() error {
	var errs []error
	if s.kept != nil {
		errs = append(errs, s.kept.Close())
	}
	errs = append(errs, s.graph.Close(), s.x.Release(), s.y.Release(), s.loss.Release(), s.dp.Close())
	if s.opt != nil {
		errs = append(errs, s.opt.Close())
	}
	return errors.Join(append(errs, s.in.Close())...)
}

// data returns this rank's part of the k-th batch.
func (s *trainingRank) data(k int) (xs []float32, ys []int32, shape []int) {
	c := s.training
	size := 1
	for _, d := range c.input {
		size *= d
	}
	r := rand.New(rand.NewPCG(uint64(k), 18))
	all, labels := make([]float32, c.batch*size), make([]int32, c.batch)
	for i := range all {
		all[i] = float32(r.NormFloat64())
	}
	for i := range labels {
		labels[i] = int32(r.IntN(c.classes))
	}
	n := c.batch / s.Size
	return all[s.N*n*size:][:n*size], labels[s.N*n:][:n], append([]int{n}, c.input...)
}

// train takes a step and returns the loss of this rank.
func (s *trainingRank) train(ctx context.Context, x, y *tensor.Tensor) (loss *tensor.Tensor, err error) {
	if s.training.reset {
		if s.kept == nil {
			s.kept = autograd.NewTape(ctx, s.RT)
		}
		if err := s.kept.Reset(ctx); err != nil {
			return nil, err
		}
		loss, err = s.on(s.kept, ctx, x, y)
		return loss, errors.Join(err, s.kept.Reset(s.Ctx))
	}
	for _, tape := range s.in.Steps(1) {
		tape.SetContext(ctx)
		loss, err = s.on(tape, ctx, x, y)
	}
	return loss, errors.Join(err, s.in.Err())
}

// on is train on a tape.
func (s *trainingRank) on(tape *autograd.Tape, ctx context.Context, x, y *tensor.Tensor) (loss *tensor.Tensor, err error) {
	l := tape.CrossEntropy(s.model.Forward(tape, tape.Input(x)), y)
	if _, err = tape.Backward(l); err != nil {
		return nil, err
	}
	loss, err = s.RT.Copy(ctx, l.Value())
	if err == nil && s.dp != nil {
		err = s.dp.AllReduce(ctx, loss, device.ReduceAvg)
	}
	if err == nil && s.training.clip > 0 {
		err = optim.ClipGradNorm(ctx, nn.ParametersOf(s.model), s.training.clip)
	}
	if err == nil {
		err = errors.Join(s.opt.Step(ctx), s.opt.ZeroGrad(ctx))
	}
	if err == nil && s.scheduler != nil {
		err = s.scheduler.Step()
	}
	return loss, err
}

// batch uploads the k-th batch.
func (s *trainingRank) batch(k int) (x, y *tensor.Tensor, err error) {
	xs, ys, shape := s.data(k)
	if x, err = tensor.FromSlice(s.Ctx, s.RT, xs, shape...); err != nil {
		return nil, nil, err
	}
	if y, err = tensor.FromSlice(s.Ctx, s.RT, ys); err != nil {
		return nil, nil, errors.Join(err, x.Release())
	}
	return x, y, nil
}

// eager takes the k-th step.
func (s *trainingRank) eager(k int) error {
	x, y, err := s.batch(k)
	if err != nil {
		return err
	}
	loss, err := s.train(s.Ctx, x, y)
	if err == nil {
		err = s.lost(loss)
	}
	return errors.Join(err, loss.Release(), x.Release(), y.Release())
}

// lost records a loss.
func (s *trainingRank) lost(loss *tensor.Tensor) error {
	l, err := tensor.Item[float32](s.Ctx, loss)
	s.losses = append(s.losses, l)
	if err == nil && s.dp != nil {
		err = s.dp.Err()
	}
	return err
}

// bits returns the bits of the parameters and buffers.
func (s *trainingRank) bits() (all []uint32, err error) {
	named, err := nn.StateDict(s.model)
	for _, t := range named {
		if t.Dtype() != tensor.Float32 || err != nil {
			continue
		}
		var values []float32
		values, err = tensor.ToSlice[float32](s.Ctx, t.Tensor, nil)
		for _, v := range values {
			all = append(all, math.Float32bits(v))
		}
	}
	return all, err
}

// record is the result of a training.
type record struct {
	losses []float32
	bits   []uint32
	orders [][]string // of the buckets
	peak   int64      // bytes requested, of the rank
	held   int64      // bytes requested after the training
	grads  int64      // bytes requested after a backward pass
}

// trainOn trains n ranks and returns rank 0's record; the other ranks' results are bit-identical.
func (c parallelTraining) trainOn(t testing.TB, n int) record {
	t.Helper()
	all := c.trainAllOn(t, n)
	for k, r := range all {
		require.Equal(t, all[0].losses, r.losses, "losses of rank %d of %d", k, n)
		require.Equal(t, all[0].bits, r.bits, "parameters of rank %d of %d", k, n)
		require.Equal(t, all[0].orders, r.orders, "buckets of rank %d of %d", k, n)
	}
	return all[0]
}

func (c parallelTraining) trainAllOn(t testing.TB, n int) []record {
	t.Helper()
	rankGroup := tapetest.NewCrew(t, n, 64<<20, 20*time.Second)
	all := make([]record, n)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		for k := 0; k < c.steps && err == nil; k++ {
			if c.step != nil {
				err = c.step(s, k)
			} else {
				err = s.eager(k)
			}
			if err != nil {
				return fmt.Errorf("step %d: %w", k, err)
			}
			if k == 1 {
				r.Cache.ResetPeakStats()
			}
		}
		if err != nil {
			return err
		}
		all[r.N].peak = r.Cache.Stats().RequestedBytes.All.Peak - r.OwnBytes
		if err := errors.Join(r.RT.Synchronize(r.Ctx), r.Cache.EmptyCache(r.Ctx)); err != nil { // polls frees
			return err
		}
		all[r.N].held = r.Cache.Stats().RequestedBytes.All.Current - r.OwnBytes
		if s.dp != nil {
			all[r.N].orders = parallel.BucketsOf(s.dp)
		}
		if all[r.N].bits, err = s.bits(); err != nil {
			return err
		}
		if err := s.pass(c.steps); err != nil { // for its gradients
			return err
		}
		if err := errors.Join(r.RT.Synchronize(r.Ctx), r.Cache.EmptyCache(r.Ctx)); err != nil {
			return err
		}
		all[r.N].grads = r.Cache.Stats().RequestedBytes.All.Current - r.OwnBytes - all[r.N].held
		if err := s.opt.ZeroGrad(r.Ctx); err != nil {
			return err
		}
		all[r.N].losses = s.losses
		return nil
	})
	rankGroup.Part()
	return all
}

// pass makes a forward and a backward pass.
func (s *trainingRank) pass(k int) error {
	xs, ys, shape := s.data(k)
	y, err := tensor.FromSlice(s.Ctx, s.RT, ys)
	if err != nil {
		return err
	}
	tape := autograd.NewTape(s.Ctx, s.RT)
	_, err = tape.Backward(tape.CrossEntropy(s.model.Forward(tape, autograd.Upload(tape, xs, shape...)), y))
	return errors.Join(err, tape.Close(), y.Release())
}

// streamOf returns the communication stream of a Parallel.
func streamOf(d *parallel.Parallel) device.Stream {
	stream, _ := parallel.ExchangeOf(d)
	return *stream
}

func smallMLP(in *nn.Initializer) nn.Layer {
	return nn.Sequential{in.Linear(20, 33), nn.ReLU{}, in.Linear(33, 12), nn.Tanh{}, in.Linear(12, 5)}
}

func smallCNN(in *nn.Initializer) nn.Layer {
	return nn.Sequential{in.Conv2d(1, 4, 3), nn.ReLU{}, in.Conv2d(4, 6, 3), nn.ReLU{}, nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{}, in.Linear(54, 5)}
}

var (
	mlpCourse = parallelTraining{model: smallMLP, input: []int{20}, classes: 5, batch: 24, steps: 12, optimizer: adamOf, cfg: parallel.Config{BucketBytes: 600, FirstBucketBytes: 100}}
	cnnCourse = parallelTraining{model: smallCNN, input: []int{1, 10, 10}, classes: 5, batch: 24, steps: 8, optimizer: adamOf, cfg: parallel.Config{BucketBytes: 600, FirstBucketBytes: 100}}
)

// brief returns the training with few steps under -short, for tests whose claims show in the first
// steps.
func (c parallelTraining) brief() parallelTraining {
	c.steps = tapetest.Rounds(c.steps, 5)
	return c
}

// requireLossesNear compares losses.
func requireLossesNear(t testing.TB, want, got []float32, most float64, what string) {
	t.Helper()
	require.Len(t, got, len(want))
	for k := range want {
		require.InDelta(t, want[k], got[k], most, "%s, step %d", what, k)
	}
}
