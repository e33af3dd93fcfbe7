package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

// rankGroup is the ranks of a test, each with a device of its own: host devices, or those that
// CISTERN_TEST_RANKS names.
type rankGroup struct {
	t     testing.TB
	ranks []*rank
}

// rank is one of them. What it does is done by one goroutine, and errors are returned.
type rank struct {
	*bench
	stack   *stacktest.Stack
	comm    device.Communicator
	n, size int
}

func newCrew(t testing.TB, ranks int, capacity int64, timeout time.Duration) *rankGroup {
	t.Helper()
	c := &rankGroup{t: t}
	for n := range ranks {
		c.ranks = append(c.ranks, newRank(t, n, n, ranks, capacity))
	}
	c.meet(timeout)
	return c
}

// newRank makes rank n, which is that number among those of this machine.
func newRank(t testing.TB, local, n, size int, capacity int64) *rank {
	t.Helper()
	cfg := stacktest.Config{Device: cisterntest.OpenRank(t, local, capacity)}
	if _, ok := cfg.Device.(*host.Device); !ok {
		cfg.Capacity, cfg.Workspace = capacity, true
	}
	s := stacktest.New(t, cfg)
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &bench{t: t, ctx: context.Background(), dev: s.Dev, cache: s.Cache, rt: rt}
	b.warmUp()
	t.Cleanup(func() {
		if err := rt.Close(); !s.Faulted {
			assert.NoError(t, err)
		}
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks of rank %d", n)
	})
	return &rank{bench: b, stack: s, n: n, size: size}
}

// meet gives the ranks a new communicator.
func (c *rankGroup) meet(timeout time.Duration) {
	c.t.Helper()
	id, err := c.ranks[0].dev.(device.Collectives).NewCommunicatorID()
	require.NoError(c.t, err)
	c.each(func(r *rank) (err error) {
		ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
		defer cancel()
		r.comm, err = r.dev.(device.Collectives).NewCommunicator(ctx, id, r.n, r.size, device.CommunicatorOptions{Timeout: timeout, Overlapped: true})
		return err
	})
	c.t.Cleanup(func() {
		c.all(func(r *rank) error { return r.comm.Close() }) // the test has seen its errors
	})
}

// all runs f on all ranks at a time, and returns what each has returned.
func (c *rankGroup) all(f func(r *rank) error) []error {
	errs := make([]error, len(c.ranks))
	var wait sync.WaitGroup
	for n, r := range c.ranks {
		wait.Go(func() { errs[n] = f(r) })
	}
	wait.Wait()
	return errs
}

// each is all for what succeeds.
func (c *rankGroup) each(f func(r *rank) error) {
	c.t.Helper()
	for n, err := range c.all(f) {
		require.NoError(c.t, err, "rank %d of %d", n, len(c.ranks))
	}
}

// parting closes the communicators. Who leaves while others need it is told elsewhere.
func (c *rankGroup) parting() {
	c.t.Helper()
	c.each(func(r *rank) error { return r.comm.Close() })
}

// parallelTraining describes a training of several ranks.
type parallelTraining struct {
	model     func(*autograd.Initializer) autograd.Layer
	input     []int // of a sample
	classes   int
	batch     int // of all ranks
	steps     int
	cfg       autograd.ParallelConfig
	alone     bool // there is no Parallel
	optimizer func(*autograd.Initializer, autograd.Parameters) autograd.Optimizer
	clip      float64
	prepare   bool // the optimiser's state is there before the first step
	schedule  autograd.Schedule
	options   []autograd.InitOption
	reset     bool // all steps are on one tape
	// step takes a step in the place of the usual one; nil: train.
	step func(s *trainingRank, k int) error
}

// trainingRank is a rank of a parallel training.
type trainingRank struct {
	*rank
	training  *parallelTraining
	in        *autograd.Initializer
	model     autograd.Layer
	opt       autograd.Optimizer
	scheduler *autograd.Scheduler
	dp        *autograd.Parallel
	losses    []float32      // the mean of all ranks', of each step
	kept      *autograd.Tape // that is reset

	graph      *tensor.Graph // of captured steps, with its inputs and its result
	x, y, loss *tensor.Tensor
}

func adamOf(in *autograd.Initializer, ps autograd.Parameters) autograd.Optimizer {
	return autograd.Own(in, autograd.NewAdam(ps, autograd.AdamConfig{LR: new(0.01)}))
}

func (c *parallelTraining) begin(r *rank) (s *trainingRank, err error) {
	s = &trainingRank{rank: r, training: c, in: autograd.Init(r.ctx, r.rt, append(c.options, autograd.Seed(uint64(7+100*r.n)))...)}
	s.model = c.model(s.in)
	params := autograd.ParametersOf(s.model)
	if err := s.in.Err(); err != nil {
		return s, err
	}
	if !c.alone {
		if s.dp, err = autograd.NewParallel(r.ctx, r.comm, s.model, c.cfg); err != nil {
			return s, err
		}
	}
	s.opt = c.optimizer(s.in, params)
	if err := s.in.Err(); err != nil {
		return s, err
	}
	if c.prepare {
		if err := s.opt.Prepare(r.ctx); err != nil {
			return s, err
		}
	}
	if c.schedule != nil {
		s.scheduler, err = autograd.NewScheduler(s.opt, c.schedule)
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

// data is this rank's part of the k-th batch.
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
	n := c.batch / s.size
	return all[s.n*n*size:][:n*size], labels[s.n*n:][:n], append([]int{n}, c.input...)
}

// train is a step, and returns the loss of this rank.
func (s *trainingRank) train(ctx context.Context, x, y *tensor.Tensor) (loss *tensor.Tensor, err error) {
	if s.training.reset {
		if s.kept == nil {
			s.kept = autograd.NewTape(ctx, s.rt)
		}
		if err := s.kept.Reset(ctx); err != nil {
			return nil, err
		}
		loss, err = s.on(s.kept, ctx, x, y)
		return loss, errors.Join(err, s.kept.Reset(s.ctx))
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
	loss, err = s.rt.Copy(ctx, l.Value())
	if err == nil && s.dp != nil {
		err = s.dp.AllReduce(ctx, loss, device.ReduceAvg)
	}
	if err == nil && s.training.clip > 0 {
		var norm *tensor.Tensor
		norm, err = autograd.ParametersOf(s.model).ClipGradNorm(ctx, s.training.clip)
		err = errors.Join(err, norm.Release())
	}
	if err == nil {
		err = errors.Join(s.opt.Step(ctx), s.opt.ZeroGrad(ctx))
	}
	if err == nil && s.scheduler != nil {
		err = s.scheduler.Step()
	}
	return loss, err
}

// batch is the k-th one.
func (s *trainingRank) batch(k int) (x, y *tensor.Tensor, err error) {
	xs, ys, shape := s.data(k)
	if x, err = tensor.FromSlice(s.ctx, s.rt, xs, shape...); err != nil {
		return nil, nil, err
	}
	if y, err = tensor.FromSlice(s.ctx, s.rt, ys); err != nil {
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
	loss, err := s.train(s.ctx, x, y)
	if err == nil {
		err = s.lost(loss)
	}
	return errors.Join(err, loss.Release(), x.Release(), y.Release())
}

// lost notes a loss.
func (s *trainingRank) lost(loss *tensor.Tensor) error {
	l, err := tensor.Item[float32](s.ctx, loss)
	s.losses = append(s.losses, l)
	if err == nil && s.dp != nil {
		err = s.dp.Err()
	}
	return err
}

// bits are the parameters and buffers, to the bit.
func (s *trainingRank) bits() (all []uint32, err error) {
	named, err := autograd.StateDict(s.model)
	for _, t := range named {
		if t.Dtype() != tensor.Float32 || err != nil {
			continue
		}
		var values []float32
		values, err = tensor.ToSlice[float32](s.ctx, t.Tensor, nil)
		for _, v := range values {
			all = append(all, math.Float32bits(v))
		}
	}
	return all, err
}

// record is what a training has come to.
type record struct {
	losses []float32
	bits   []uint32
	orders [][]string // of the buckets
	peak   int64      // bytes requested, of the rank
	held   int64      // bytes requested when all was trained
	grads  int64      // bytes requested that a backward pass leaves
}

// trainOn trains n ranks, and returns what rank 0 has; the others have the same to the bit.
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
	rankGroup := newCrew(t, n, 64<<20, 20*time.Second)
	all := make([]record, n)
	rankGroup.each(func(r *rank) (err error) {
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
				r.cache.ResetPeakStats()
			}
		}
		if err != nil {
			return err
		}
		all[r.n].peak = r.cache.Stats().RequestedBytes.All.Peak - r.ownBytes
		if err := errors.Join(r.rt.Synchronize(r.ctx), r.cache.EmptyCache(r.ctx)); err != nil { // which polls what was freed beside other streams
			return err
		}
		all[r.n].held = r.cache.Stats().RequestedBytes.All.Current - r.ownBytes
		if s.dp != nil {
			all[r.n].orders = autograd.BucketsOf(s.dp)
		}
		if all[r.n].bits, err = s.bits(); err != nil {
			return err
		}
		if err := s.pass(c.steps); err != nil { // for its gradients
			return err
		}
		if err := errors.Join(r.rt.Synchronize(r.ctx), r.cache.EmptyCache(r.ctx)); err != nil {
			return err
		}
		all[r.n].grads = r.cache.Stats().RequestedBytes.All.Current - r.ownBytes - all[r.n].held
		if err := s.opt.ZeroGrad(r.ctx); err != nil {
			return err
		}
		all[r.n].losses = s.losses
		return nil
	})
	rankGroup.parting()
	return all
}

// pass is a forward and a backward pass.
func (s *trainingRank) pass(k int) error {
	xs, ys, shape := s.data(k)
	y, err := tensor.FromSlice(s.ctx, s.rt, ys)
	if err != nil {
		return err
	}
	tape := autograd.NewTape(s.ctx, s.rt)
	_, err = tape.Backward(tape.CrossEntropy(s.model.Forward(tape, autograd.Upload(tape, xs, shape...)), y))
	return errors.Join(err, tape.Close(), y.Release())
}

// streamOf is the stream that a Parallel exchanges on.
func streamOf(d *autograd.Parallel) device.Stream {
	stream, _ := autograd.ExchangeOf(d)
	return *stream
}

func smallMLP(in *autograd.Initializer) autograd.Layer {
	return autograd.Sequential{in.Linear(20, 33), autograd.ReLU{}, in.Linear(33, 12), autograd.Tanh{}, in.Linear(12, 5)}
}

func smallCNN(in *autograd.Initializer) autograd.Layer {
	return autograd.Sequential{in.Conv2d(1, 4, 3), autograd.ReLU{}, in.Conv2d(4, 6, 3), autograd.ReLU{}, autograd.MaxPool2d{Kernel: []int{2}}, autograd.Flatten{}, in.Linear(54, 5)}
}

var (
	mlpCourse = parallelTraining{model: smallMLP, input: []int{20}, classes: 5, batch: 24, steps: 12, optimizer: adamOf, cfg: autograd.ParallelConfig{BucketBytes: 600, FirstBucketBytes: 100}}
	cnnCourse = parallelTraining{model: smallCNN, input: []int{1, 10, 10}, classes: 5, batch: 24, steps: 8, optimizer: adamOf, cfg: autograd.ParallelConfig{BucketBytes: 600, FirstBucketBytes: 100}}
)

// brief is the training with few steps under -short, for tests in which all is seen in the first of them.
func (c parallelTraining) brief() parallelTraining {
	c.steps = rounds(c.steps, 5)
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
