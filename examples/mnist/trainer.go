package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/telemetry"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// ahead is the number of batches that are loaded ahead of the one in use.
const ahead = 2

// trainer holds everything that training needs. Its parts are closed in the reverse order.
type trainer struct {
	env       *tensor.Runtime
	loader    *loader.Loader
	recipe    models.Recipe
	model     nn.Layer
	params    autograd.Parameters
	optimizer optim.Optimizer
	dtype     tensor.Dtype   // in which steps compute
	tape      *autograd.Tape // reset for each step
	loss      *tensor.Tensor // summed over the pictures of the epoch
	profiler  *trace.Profiler
	graphs    *stepGraphs        // nil: steps are eager
	ranks     *parallel.Parallel // nil: there is one
	abort     func() error       // ends the waits of the other ranks

	place      place
	resumeFile string  // empty: there are no checkpoints
	steps      int     // planned
	lr         float64 // before the factor of the recipe's Rate
	sdk        *telemetry.SDK
	tracer     *trace.Tracer       // nil without an SDK
	comm       *trace.Communicator // nil: there is one rank
	profiling  *profiling
	closers    []func() error
}

// newTrainer makes a trainer that takes the given number of steps.
func newTrainer(ctx context.Context, o options, fields []int64, steps int, sdk *telemetry.SDK, profiling *profiling) (t *trainer, err error) {
	t = &trainer{steps: steps, sdk: sdk, profiling: profiling}
	if t.tracer, err = tracerOf(sdk, o.party); err != nil {
		return t, err
	}
	if t.env, err = tensor.Open(o.deviceOf(o.party), profiling.options(t.tracer)...); err != nil {
		return t, errors.Join(err, t.close())
	}
	t.onClose(t.env.Close)
	return t, t.build(ctx, o, fields)
}

// build makes the trainer's parts on its runtime. After an error it closes the trainer.
func (t *trainer) build(ctx context.Context, o options, fields []int64) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	t.recipe, t.dtype = models.Recipes[o.model], o.dtype()
	t.tape = autograd.NewTape(ctx, t.env)
	if err = t.profiling.begin(t.env); err != nil {
		return err
	}
	if _, err = t.tracer.Watch(t.env.Cache()); err != nil {
		return err
	}
	if _, err = t.tracer.WatchPool(t.env.Pool()); err != nil {
		return err
	}
	t.loader, err = loader.New(ctx, t.env.Pool(), loader.Config{
		Cache: t.env.Cache(), Compute: t.env.Stream(), Fields: fields, Ahead: ahead,
	})
	if err != nil {
		return err
	}
	t.onClose(t.loader.Close)
	offloader, err := t.newOffloader(o)
	if err != nil {
		return err
	}
	in := nn.Init(ctx, t.env, nn.Seed(o.seed+uint64(o.party.number())))
	t.model = t.recipe.Model(in)
	t.params = t.model.Parameters()
	if err = in.Err(); err != nil {
		return err
	}
	t.onClose(in.Close)
	if o.load != "" {
		if err = nn.LoadModel(ctx, t.model, o.load); err != nil {
			return err
		}
	}
	if err = t.join(ctx, o); err != nil {
		return err
	}
	t.optimizer = t.recipe.NewOptimizer(in, o.optimizer, o.lr, t.params)
	if err = in.Err(); err != nil {
		return err
	}
	if err = t.optimizer.Prepare(ctx); err != nil {
		return err
	}
	if offloader != nil {
		if err = offload.State(ctx, t.optimizer, offloader, 0); err != nil {
			return err
		}
	}
	t.lr = t.optimizer.LR()
	if err = t.resume(ctx, o); err != nil {
		return err
	}
	if t.loss, err = t.env.Zeros(ctx, tensor.Float32); err != nil {
		return err
	}
	t.onClose(t.loss.Release)
	if o.graph {
		if t.graphs, err = newStepGraphs(t.env); err != nil {
			return err
		}
		t.onClose(t.graphs.close)
	}
	t.profiler, err = trace.NewProfiler(trace.ProfilerConfig{Cache: t.env.Cache(), Pool: t.env.Pool(), Stream: t.env.Stream(), Communicator: t.comm, Tracer: t.tracer, Starting: t.profiling.folder.Starting,
		Kernels: t.profiling.kernels, Holders: t.profiling.holders(), OnProfile: t.profiling.onProfile})
	if err != nil {
		return err
	}
	t.onClose(t.profiler.Close)
	return nil
}

// newOffloader returns the offloader of the optimiser's state, or nil without -offload.
func (t *trainer) newOffloader(o options) (*tensor.Offloader, error) {
	if !o.offload {
		return nil, nil
	}
	offloader, err := tensor.NewOffloader(t.env, tensor.OffloadConfig{})
	if err != nil {
		return nil, err
	}
	t.onClose(offloader.Close)
	_, err = t.tracer.WatchOffload(t.env.Device(), offloader.Stats)
	return offloader, err
}

func (t *trainer) onClose(f func() error) { t.closers = append(t.closers, f) }

// close sends the last metrics and closes all parts. Memory that is not freed by then is an error.
func (t *trainer) close() error {
	t.sdk.CloseTracer(t.tracer)
	errs := []error{t.profiling.end()}
	for i := len(t.closers) - 1; i >= 0; i-- {
		errs = append(errs, t.closers[i]())
	}
	t.closers = nil
	return errors.Join(errs...)
}

// epoch takes the given number of steps on the batches of one epoch, and returns the mean loss of
// all ranks. It calls progress after every step. If ctx is cancelled it returns the mean so far and
// ctx's error after the current step. With several ranks it stops at the same later step on all of
// them; on a rank whose own ctx is not cancelled the error is errStopped.
func (t *trainer) epoch(ctx context.Context, source loader.Source, steps int, progress func()) (loss float64, err error) {
	if err := t.env.Zero(ctx, t.loss); err != nil {
		return 0, err
	}
	uncancelled := context.WithoutCancel(ctx)
	if err := t.loader.Start(uncancelled, source); err != nil {
		return 0, err
	}
	pictures := 0
	var stopped error
	for range steps {
		if stopped, err = t.stops(ctx); stopped != nil || err != nil {
			break
		}
		n, err := t.trainStep(uncancelled)
		if err != nil {
			return 0, err
		}
		pictures += n
		progress()
	}
	if err != nil {
		return 0, err
	}
	if t.ranks == nil {
		stopped = ctx.Err()
	} else if err := t.ranks.AllReduce(uncancelled, t.loss, device.ReduceSum); err != nil {
		return 0, err
	}
	sum, err := tensor.Item[float32](uncancelled, t.loss)
	if err == nil && t.ranks != nil {
		pictures *= t.ranks.Size()
		err = t.ranks.Err()
	}
	if err != nil {
		return 0, err
	}
	return float64(sum) / float64(max(pictures, 1)), stopped
}

// trainStep takes one step and returns its number of pictures. The step includes the wait for its
// batch.
func (t *trainer) trainStep(ctx context.Context) (n int, err error) {
	number := int64(t.place.Step + 1)
	look := t.profiling.folder.Step(number)
	defer look.Write() // after the step, so that its time does not include this
	ctx, step := t.profiler.StartStep(ctx, number)
	defer step.End() // deferred directly, so that it notices a panic
	ctx = look.Begin(ctx)
	defer look.End()
	defer func() { step.Fail(err) }()
	return t.take(ctx)
}

// take takes a step on the next batch.
func (t *trainer) take(ctx context.Context) (n int, err error) {
	batch, err := t.loader.Next(ctx)
	if err != nil {
		return 0, err
	}
	n, err = t.train(ctx, batch)
	if err = errors.Join(err, batch.Release()); err == nil {
		t.place.Step++
	}
	return n, err
}

// train takes the step on a batch, at the step's learning rate.
func (t *trainer) train(ctx context.Context, batch *loader.Minibatch) (n int, err error) {
	x, y, err := t.tensors(batch)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Release(), y.Release()) }()
	if err := t.optimizer.SetLR(t.lr * t.recipe.Rate(t.place.Step, t.steps)); err != nil {
		return 0, err
	}
	return y.Elements(), t.graphs.take(ctx, x, y, t.compute)
}

// compute computes the loss and its gradients, and updates the parameters. With -graph it is
// captured.
func (t *trainer) compute(ctx context.Context, x, y *tensor.Tensor) (err error) {
	tape := t.tape
	if err := tape.Reset(ctx); err != nil {
		return err
	}
	defer func() { err = closeTape(tape, err) }()
	tape.SetComputeDtype(t.dtype)

	logits := t.model.Forward(tape, tape.Input(x))
	loss, err := tape.Backward(tape.CrossEntropy(logits, y))
	if err != nil {
		return err
	}
	return errors.Join(
		t.clip(ctx),
		t.optimizer.Step(ctx),
		t.optimizer.ZeroGrad(ctx),
		t.env.MulScalarInPlace(ctx, loss, float64(y.Elements())),
		t.env.AddInPlace(ctx, t.loss, loss),
	)
}

// clip limits the norm of the gradients if the model's recipe has a limit. The host does not wait
// for the norm.
func (t *trainer) clip(ctx context.Context) error {
	if t.recipe.Clip == 0 {
		return nil
	}
	return optim.ClipGradNorm(ctx, t.params, t.recipe.Clip)
}

// closeTape closes the tape and returns err or, if that is nil, the tape's error. It does not join
// them, because err is the tape's error.
func closeTape(tape *autograd.Tape, err error) error {
	if stuck := tape.Close(); err == nil {
		return stuck
	}
	return err
}

// tensors returns a batch's pictures (n, 784) and labels (n), in the loader's memory.
func (t *trainer) tensors(batch *loader.Minibatch) (x, y *tensor.Tensor, err error) {
	n := int(batch.Bytes(digits.LabelField) / 4)
	if x, err = t.env.FromBlock(batch.Field(digits.ImageField), tensor.Float32, n, digits.Pixels); err != nil {
		return nil, nil, err
	}
	if y, err = t.env.FromBlock(batch.Field(digits.LabelField), tensor.Int32, n); err != nil {
		return nil, nil, errors.Join(err, x.Release())
	}
	return x, y, nil
}

// test returns the confusion matrix of the model on the pictures of the source.
func (t *trainer) test(ctx context.Context, source loader.Source) (m metric.Matrix, err error) {
	seen := metric.NewConfusion(ctx, t.env, digits.Classes)
	defer func() { err = errors.Join(err, seen.Close()) }()
	if err := t.look(ctx, source, seen); err != nil {
		return nil, err
	}
	return seen.Value(ctx)
}

// look adds the model's answers for each batch of the source to seen.
func (t *trainer) look(ctx context.Context, source loader.Source, seen *metric.Confusion) error {
	if err := t.loader.Start(ctx, source); err != nil {
		return err
	}
	for {
		batch, err := t.loader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err = errors.Join(t.answer(ctx, batch, seen), batch.Release()); err != nil {
			return fmt.Errorf("mnist: testing: %w", err)
		}
	}
}

func (t *trainer) answer(ctx context.Context, batch *loader.Minibatch, seen *metric.Confusion) (err error) {
	x, y, err := t.tensors(batch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Release(), y.Release()) }()
	tape := autograd.NoGrad(ctx, t.env)
	seen.Add(tape, t.model.Forward(tape, tape.Input(x)), y)
	return tape.Close()
}
