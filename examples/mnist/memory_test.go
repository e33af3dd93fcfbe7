package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/trace"
)

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(childArgs); ok { // the program itself, for the tests of signals
		os.Args = append(os.Args[:1], strings.Split(args, "\n")...)
		main()
	}
	cisterntest.Main(m)
}

// rounds returns the number of repetitions of a test, or the size of its input: full for
// statistical power, and with -short just enough that each code path is taken.
func rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

func init() {
	tiny := func(in *nn.Initializer) nn.Layer {
		return nn.Sequential{in.Linear(digits.Pixels, 16), nn.ReLU{}, in.Linear(16, digits.Classes)}
	}
	models.Recipes["tiny"] = models.Recipe{About: "784-16-10", Model: tiny, Optimizer: "adam", LR: 1e-3, Rate: models.Linear}
	models.Names = append(models.Names, "tiny")
}

// anyModel returns a model for tests that work with any model: a small one with -short.
func anyModel() string {
	if testing.Short() {
		return "tiny"
	}
	return "mlp"
}

// synthetic is a data set of patterns, so that tests need no files.
func synthetic(n int) *digits.Set {
	d := &digits.Set{Images: make([]byte, n*digits.Pixels), Labels: make([]uint8, n)}
	for i := range d.Labels {
		d.Labels[i] = uint8(i % digits.Classes)
		for j := range 40 {
			d.Images[i*digits.Pixels+(i%digits.Classes)*70+j] = byte(200 + i%50)
		}
	}
	return d
}

// profiled is a trainer that keeps the profile of every step.
func profiled(t *testing.T, o options, b digits.Batches, steps int) (*trainer, *[]trace.StepProfile) {
	tr, err := newTrainer(context.Background(), o, b.Fields(), steps, nil, &profiling{})
	require.NoError(t, err)
	var profiles []trace.StepProfile
	tr.profiler, err = trace.NewProfiler(trace.ProfilerConfig{
		Cache: tr.env.Cache(), Pool: tr.env.Pool(), Stream: tr.env.Stream(),
		OnProfile: func(p trace.StepProfile) { profiles = append(profiles, p) },
	})
	require.NoError(t, err)
	tr.onClose(tr.profiler.Close)
	return tr, &profiles
}

// TestPeak compares the peak of a training step with the memory that the mathematics needs.
func TestPeak(t *testing.T) {
	const batch = 128
	b := digits.Batches{Data: synthetic(10 * batch), Size: batch, InOrder: true}
	tr, profiles := profiled(t, options{device: "host", model: "mlp", optimizer: "adam", seed: 1}, b, b.Count())
	_, err := tr.epoch(context.Background(), b.Epoch(0), b.Count(), func() {})
	require.NoError(t, err)
	params := tr.model.Parameters().Bytes()
	require.NoError(t, tr.close())

	activations := int64(batch * (512 + 512 + digits.Classes) * 4) // after each ReLU, and the logits
	ring := int64(ahead+1) * (batch*digits.Pixels*4 + batch*4)
	need := params + params + 2*params + activations + ring // parameters, gradients, Adam's two moments
	var peak int64
	for _, p := range *profiles {
		peak = max(peak, p.RequestedPeak)
	}
	t.Logf("peak requested %d bytes, needed %d: %.3f x", peak, need, float64(peak)/float64(need))
	require.LessOrEqual(t, float64(peak), 1.15*float64(need))
	require.GreaterOrEqual(t, peak, 4*params, "the peak counts the optimiser's state")
}

// TestMemoryIsTheSameInEveryStep: also with loaders that are much slower or much faster than the
// training, and on one processor.
func TestMemoryIsTheSameInEveryStep(t *testing.T) {
	for _, c := range []struct {
		name  string
		batch int
		procs int
		slow  time.Duration // of the source, for a batch
	}{
		{"as it comes", 64, runtime.NumCPU(), 0},
		{"one processor", 64, 1, 0},
		{"slow loader", 4, runtime.NumCPU(), 30 * time.Millisecond},
		{"fast loader", rounds(256, 128), runtime.NumCPU(), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.procs))
			b := digits.Batches{Data: synthetic(8 * c.batch), Size: c.batch, InOrder: true}
			tr, profiles := profiled(t, options{device: "host", model: "mlp", optimizer: "adam", seed: 1}, b, b.Count())
			source := b.Epoch(0)
			loss, err := tr.epoch(context.Background(), func(ctx context.Context, fields [][]byte) error {
				time.Sleep(c.slow)
				return source(ctx, fields)
			}, b.Count(), func() {})
			require.NoError(t, err)
			require.False(t, math.IsNaN(loss))
			cache, pool := tr.env.Cache(), tr.env.Pool()
			require.NoError(t, tr.close(), "nothing may be live")

			require.Len(t, *profiles, 8)
			first, third := (*profiles)[0], (*profiles)[2] // reserved may grow in the first three
			for _, p := range *profiles {
				require.Equal(t, first.AllocatedPeak, p.AllocatedPeak, "step %d", p.Step)
				if p.Step > 3 {
					require.Equal(t, third.Reserved, p.ReservedPeak, "step %d", p.Step)
					require.Zero(t, p.DriverAllocs)
				}
			}
			require.Zero(t, cache.MemoryAllocated())
			require.Zero(t, cache.MemoryReserved())
			require.Zero(t, pool.Stats().AllocatedBytes.Current, "pinned bytes")
		})
	}
}

// TestLearns trains on patterns that are easy to tell apart.
func TestLearns(t *testing.T) {
	for _, optimizer := range models.Optimizers {
		epochs, model := 4, "mlp"
		if optimizer != "adam" { // one of them learns it all under -short
			epochs, model = rounds(4, 1), anyModel()
		}
		b := digits.Batches{Data: synthetic(320), Size: 32, Seed: 1}
		tr, err := newTrainer(context.Background(), options{device: "host", model: model, optimizer: optimizer, seed: 1}, b.Fields(), 40, nil, &profiling{})
		require.NoError(t, err)
		before, err := tr.test(context.Background(), b.Epoch(0))
		require.NoError(t, err)
		var losses []float64
		for epoch := range epochs {
			loss, err := tr.epoch(context.Background(), b.Epoch(epoch), b.Count(), func() {})
			require.NoError(t, err)
			losses = append(losses, loss)
		}
		after, err := tr.test(context.Background(), b.Epoch(0))
		require.NoError(t, err)
		require.Less(t, before.Accuracy(), 0.5)
		if epochs == 4 {
			require.EqualValues(t, 1, after.Accuracy(), "%s: losses %v", optimizer, losses)
		}
		require.Greater(t, after.Accuracy(), before.Accuracy())
		require.True(t, epochs == 1 || losses[epochs-1] < losses[0])
		require.NoError(t, tr.close())
	}
}

// TestLabelOutOfRange: a wrong label, which the loader can't detect, is one error of the epoch, and
// no memory leaks.
func TestLabelOutOfRange(t *testing.T) {
	b := digits.Batches{Data: synthetic(128), Size: 64, InOrder: true}
	b.Data.Labels[70] = digits.Classes
	tr, err := newTrainer(context.Background(), options{device: "host", model: anyModel(), optimizer: "sgd"}, b.Fields(), 2, nil, &profiling{})
	require.NoError(t, err)
	_, err = tr.epoch(context.Background(), b.Epoch(0), 2, func() {})
	require.ErrorContains(t, err, "label 10 in row 6")
	require.NoError(t, tr.close())
}

// TestSourceFails: an error of the source is returned by the step that would read its batch.
func TestSourceFails(t *testing.T) {
	b := digits.Batches{Data: synthetic(640), Size: 64, InOrder: true}
	tr, err := newTrainer(context.Background(), options{device: "host", model: anyModel(), optimizer: "sgd"}, b.Fields(), 10, nil, &profiling{})
	require.NoError(t, err)
	source, n := b.Epoch(0), 0
	_, err = tr.epoch(context.Background(), func(ctx context.Context, fields [][]byte) error {
		if n++; n == 4 {
			return context.DeadlineExceeded
		}
		return source(ctx, fields)
	}, b.Count(), func() {})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 3, tr.place.Step)
	require.NoError(t, tr.close())
}

// TestLearningRateFalls: the learning rate falls to 0 in a straight line.
func TestLearningRateFalls(t *testing.T) {
	b := digits.Batches{Data: synthetic(32), Size: 8, InOrder: true}
	tr, err := newTrainer(context.Background(), options{device: "host", model: anyModel(), optimizer: "sgd", lr: 0.4}, b.Fields(), 4, nil, &profiling{})
	require.NoError(t, err)
	_, err = tr.epoch(context.Background(), b.Epoch(0), 4, func() {})
	require.NoError(t, err)
	require.InDelta(t, 0.1, tr.optimizer.LR(), 1e-9, "of the last step")
	require.NoError(t, tr.close())
}

// TestStepThatPanics: a step that panics counts as failed.
func TestStepThatPanics(t *testing.T) {
	b := digits.Batches{Data: synthetic(32), Size: 8, InOrder: true}
	tr, err := newTrainer(context.Background(), options{device: "host", model: anyModel(), optimizer: "sgd"}, b.Fields(), 4, nil, &profiling{})
	require.NoError(t, err)
	optimizer := tr.optimizer
	tr.optimizer = nil
	require.Panics(t, func() { _, _ = tr.epoch(context.Background(), b.Epoch(0), 4, func() {}) })
	tr.optimizer = optimizer
	require.NoError(t, tr.profiler.Flush(t.Context()))
	require.EqualValues(t, 1, tr.profiler.Summary().Failed)
	_ = tr.close() // the batch was never released
}
