package autograd_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// dropped returns the results of two dropouts of n ones on a tape, and the gradient of the first.
func dropped(b *tapetest.Bench, seed uint64, n int, p float64) (first, second, grad []float64) {
	tape := autograd.NewTape(b.Ctx, b.RT)
	defer tape.Close()
	if seed != 0 {
		tape.SetSeed(seed)
	}
	ones, err := b.RT.Full(b.Ctx, 1, tensor.Float64, n)
	require.NoError(b.T, err)
	x := tape.Leaf(ones)
	require.NoError(b.T, ones.Release())
	y, z := tape.Dropout(x, p), tape.Dropout(tape.Input(onesOf(b, n)), p)
	require.NoError(b.T, tape.Err())
	first, second = tapetest.Read[float64](b, y.Value()), tapetest.Read[float64](b, z.Value())
	_, err = tape.Backward(tape.Sum(y))
	require.NoError(b.T, err)
	return first, second, tapetest.Read[float64](b, x.Grad())
}

func onesOf(b *tapetest.Bench, n int) *tensor.Tensor {
	return tapetest.Upload(b, slices.Repeat([]float64{1}, n), n)
}

// TestDropout: an element is kept with probability 1-p, independently of its neighbours and of
// other operations. With the same seed the same elements are kept. The gradient is that of the kept
// elements.
func TestDropout(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const n, p = 40_000, 0.3
	first, second, grad := dropped(b, 7, n, p)
	assert.Equal(t, first, grad)
	again, _, _ := dropped(b, 7, n, p)
	assert.Equal(t, first, again)
	other, _, _ := dropped(b, 8, n, p)
	unseeded, _, _ := dropped(b, 0, n, p)
	left := func(vs []float64) (share float64) {
		for _, v := range vs {
			if v != 0 {
				require.Equal(t, 1/(1-p), v)
				share += 1.0 / n
			}
		}
		return share
	}
	bound := 5 * math.Sqrt(p*(1-p)/n) // of five standard deviations
	for _, vs := range [][]float64{first, second, other, unseeded} {
		assert.InDelta(t, 1-p, left(vs), bound)
	}
	// Two that are independent are both left with probability (1-p)².
	both := func(what string, a, b []float64) {
		t.Helper()
		share := 0.0
		for i := range a {
			if a[i] != 0 && b[i%len(b)] != 0 {
				share += 1 / float64(len(a))
			}
		}
		q := (1 - p) * (1 - p)
		assert.InDelta(t, q, share, 5*math.Sqrt(q*(1-q)/float64(len(a))), what)
	}
	both("two operations", first, second)
	both("two seeds", first, other)
	both("with and without a seed", first, unseeded)
	for _, lag := range []int{1, 2, 3, 4, 64} {
		both("neighbours", first[:n-lag], first[lag:])
	}
}

func TestDropoutOfAllAndNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	first, _, grad := dropped(b, 1, 5, 1)
	assert.Equal(t, make([]float64, 5), first)
	assert.Equal(t, make([]float64, 5), grad)
	first, _, _ = dropped(b, 1, 5, 0)
	assert.Equal(t, []float64{1, 1, 1, 1, 1}, first)
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Dropout(tape.Input(onesOf(b, 2)), math.NaN())
	assert.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
}

// TestStepsAreSeeded: each step of a training drops other elements, and a repeated training drops
// the same ones.
func TestStepsAreSeeded(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	run := func(seed uint64) (all [][]float64) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(seed), nn.Dtype(tensor.Float64))
		x := in.Tensor(slices.Repeat([]float64{1}, 64), 64)
		for _, tape := range in.Steps(2) {
			all = append(all, tapetest.Read[float64](b, nn.Dropout{P: 0.5}.Forward(tape, tape.Input(x)).Value()))
		}
		require.NoError(t, in.Close())
		return all
	}
	one := run(1)
	assert.Equal(t, one, run(1))
	assert.NotEqual(t, one[0], one[1])
	assert.NotEqual(t, one, run(2))
}

// TestDropoutInUse: a dropout on a tape that does not train does nothing.
func TestDropoutInUse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.SetTraining(false)
	x := tape.Input(onesOf(b, 8))
	assert.Same(t, x, nn.Dropout{P: 0.9}.Forward(tape, x))
	require.NoError(t, tape.Close())
}

// TestDropoutFollowsTheTape: the mode of a tape, not whether it records, decides whether the
// operation drops, as the layer does; without dropping it takes no random numbers, and its result
// is a value of its own.
func TestDropoutFollowsTheTape(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := onesOf(b, 1000)
	p, err := autograd.NewParameter(onesOf(b, 1000))
	require.NoError(t, err)
	for _, record := range []bool{true, false} {
		for _, trains := range []bool{true, false} {
			tape := autograd.NoGrad(b.Ctx, b.RT)
			if record {
				tape = autograd.NewTape(b.Ctx, b.RT)
			}
			require.Equal(t, record, tape.Training())
			tape.SetTraining(trains)
			h := tape.AddScalar(tape.Mul(tape.Input(x), tape.Param(p)), 0)
			y := tape.Dropout(h, 0.5)
			h.Release()
			layer := nn.Dropout{P: 0.5}.Forward(tape, tape.Input(x))
			zeros := 0
			for _, v := range append(tapetest.Read[float64](b, y.Value()), tapetest.Read[float64](b, layer.Value())...) {
				if v == 0 {
					zeros++
				}
			}
			require.Equal(t, trains, zeros > 800 && zeros < 1200, "%d zeros of 2000 on a tape with gradients %v that trains %v", zeros, record, trains)
			require.Equal(t, trains, zeros > 0)
			require.Equal(t, trains, autograd.Seeded(tape), "random numbers")
			if record {
				_, err := tape.Backward(tape.Sum(y))
				require.NoError(t, err)
				require.Equal(t, !trains, slices.Max(tapetest.Read[float64](b, p.Grad())) == 1)
				require.NoError(t, p.ZeroGrad(b.Ctx))
			}
			require.NoError(t, tape.Close())
		}
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	tape.Dropout(tape.Input(x), 1.5)
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	require.NoError(t, p.Release())
}

// A dropout takes the probabilities 0 and 1, and none beyond, also if it drops nothing.
func TestProbabilitiesOfDropout(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := onesOf(b, 3)
	for p, want := range map[float64][]float64{0: {1, 1, 1}, 1: {0, 0, 0}, -math.SmallestNonzeroFloat64: nil, math.Nextafter(1, 2): nil, math.NaN(): nil} {
		for _, training := range []bool{true, false} {
			tape := autograd.NewTape(b.Ctx, b.RT)
			tape.SetTraining(training)
			y := tape.Dropout(tape.Leaf(x), p)
			if want == nil {
				require.ErrorIs(t, tape.Close(), tensor.ErrInvalid, "%v", p)
				continue
			}
			require.NoError(t, tape.Err(), "%v", p)
			if !training {
				want = []float64{1, 1, 1}
			}
			require.Equal(t, want, tapetest.Read[float64](b, y.Value()))
			require.NoError(t, tape.Close())
		}
	}
}

// numbersOf are the elements of a tensor of any dtype.
func numbersOf(b *tapetest.Bench, x *tensor.Tensor) []float64 {
	y, err := b.RT.Convert(b.Ctx, x, tensor.Float64)
	require.NoError(b.T, err)
	defer func() { require.NoError(b.T, y.Release()) }()
	return tapetest.Read[float64](b, y)
}

// TestRandomOperations: each takes the next stream of the tape's seed, and is a constant.
func TestRandomOperations(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, logits := tapetest.Upload(b, []float64{0.2, 0.5, 0.7, 1}, 4), tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 2, 3)
	for _, seed := range []uint64{3, 1 << 40} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetSeed(seed)
		x := tape.Leaf(p)
		all := []*autograd.Variable{
			tape.Uniform(-1, 2, tensor.Float64, 4), tape.Normal(1, 2, tensor.Float64, 4), tape.Bernoulli(x),
			tape.Categorical(tape.Leaf(logits), tensor.TopK(2)), tape.RandPerm(4),
		}
		require.NoError(t, tape.Err())
		stream := uint64(0)
		next := func() tensor.Random {
			stream++
			return tensor.Random{Seed: seed, Stream: stream - 1}
		}
		same := func(want *tensor.Tensor, err error) {
			t.Helper()
			require.NoError(t, err)
			got := all[stream-1]
			require.Equal(t, numbersOf(b, want), numbersOf(b, got.Value()))
			require.False(t, got.RequiresGrad())
			require.NoError(t, want.Release())
		}
		same(b.RT.Uniform(b.Ctx, next(), -1, 2, tensor.Float64, 4))
		same(b.RT.Normal(b.Ctx, next(), 1, 2, tensor.Float64, 4))
		same(b.RT.Bernoulli(b.Ctx, next(), p))
		same(b.RT.Categorical(b.Ctx, next(), logits, tensor.TopK(2)))
		same(b.RT.RandPerm(b.Ctx, next(), 4))
		noise := tapetest.Read[float64](b, all[1].Value())
		_, err := tape.Backward(tape.Sum(tape.Mul(x, all[1])))
		require.NoError(t, err)
		require.Equal(t, noise, tapetest.Read[float64](b, x.Grad()))
		require.NoError(t, tape.Close())
	}
}

// TestNoiseInTheComputeDtype: float32 means the dtype that the tape computes in.
func TestNoiseInTheComputeDtype(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, compute := range []tensor.Dtype{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		tape.SetComputeDtype(compute)
		require.Equal(t, compute, tape.Normal(0, 1, tensor.Float32, 2).Value().Dtype())
		require.Equal(t, compute, tape.Uniform(0, 1, tensor.Float32, 2).Value().Dtype())
		require.Equal(t, tensor.Float64, tape.Normal(0, 1, tensor.Float64, 2).Value().Dtype())
		require.NoError(t, tape.Close())
		for _, none := range []tensor.Dtype{0, tensor.Int32} {
			tape = autograd.NoGrad(b.Ctx, b.RT)
			tape.SetComputeDtype(compute)
			tape.Normal(0, 1, none, 2)
			require.ErrorIs(t, tape.Close(), tensor.ErrDtype)
		}
	}
}

// TestNoiseOfRecomputedLayers: a region that runs again has the same noise, with which the gradient
// is that of the value.
func TestNoiseOfRecomputedLayers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := tape.Leaf(onesOf(b, 50))
	tape.Normal(0, 1, tensor.Float64, 3)
	loss := tape.Sum(remat.Checkpoint(tape, func() *autograd.Variable {
		return tape.Mul(tape.Mul(x, tape.Normal(0, 1, tensor.Float64, 50)), tape.Uniform(0, 1, tensor.Float64, 50))
	}))
	tape.Normal(0, 1, tensor.Float64, 3)
	value := loss.Item()
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	for _, v := range tapetest.Read[float64](b, x.Grad()) {
		value -= v
	}
	require.InDelta(t, 0, value, 1e-12)
	require.NoError(t, tape.Close())
}

// TestCapturedSampling: replays of a step that draws a token and looks it up, with noise, differ,
// and equal eager steps with the same seeds. The step never waits for the host.
func TestCapturedSampling(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const tokens, batch = 50, 8
	weight := make([]float64, tokens)
	for i := range weight {
		weight[i] = float64(i)
	}
	logits, table := tapetest.Upload(b, make([]float64, batch*tokens), batch, tokens), tapetest.Upload(b, weight, tokens, 1)
	step := func(tape *autograd.Tape) *tensor.Tensor {
		token := tape.Categorical(tape.Input(logits), tensor.Temperature(0.8), tensor.TopK(40), tensor.TopP(0.9))
		y := tape.Add(tape.Embedding(token, tape.Input(table), tensor.EmbeddingConfig{}), tape.Normal(0, 1, tensor.Float64, batch, 1))
		return tape.IndexSelect(y, 0, tape.RandPerm(batch)).Keep().Value()
	}
	seed := uint64(100)
	next := func() uint64 {
		seed++
		return seed
	}
	y := tapetest.Upload(b, make([]float64, batch), batch, 1)
	g, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error {
		tape := autograd.NoGrad(ctx, b.RT)
		tape.SetSeedFrom(next)
		return errors.Join(b.RT.CopyInPlace(ctx, y, step(tape)), tape.Close())
	})
	require.NoError(t, err)
	var before []float64
	for range 4 {
		require.NoError(t, g.Replay(b.Ctx))
		got := tapetest.Read[float64](b, y)
		tape := autograd.NoGrad(b.Ctx, b.RT)
		tape.SetSeed(seed)
		require.Equal(t, tapetest.Read[float64](b, step(tape)), got)
		require.NoError(t, tape.Close())
		require.NotEqual(t, before, got)
		before = got
	}
	require.NoError(t, g.Close())
}

// TestRandomOperationsThatFail: the error sticks to the tape.
func TestRandomOperationsThatFail(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := onesOf(b, 3)
	for name, f := range map[string]func(t *autograd.Tape){
		"Uniform":     func(t *autograd.Tape) { t.Uniform(1, 0, tensor.Float32) },
		"Normal":      func(t *autograd.Tape) { t.Normal(0, -1, tensor.Float32) },
		"Categorical": func(t *autograd.Tape) { t.Categorical(t.Input(x), tensor.TopP(2)) },
		"RandPerm":    func(t *autograd.Tape) { t.RandPerm(-1) },
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		f(tape)
		require.ErrorContains(t, tape.Err(), name)
		require.Error(t, tape.Close())
	}
}

// TestDropout2d: on a tape that trains, a channel is kept with probability 1-p or dropped as a
// whole, and the gradient is that of the kept channels. A p of 1 drops all, and an argument without
// channels is an error.
func TestDropout2d(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const n, channels, inner, p = 500, 8, 3, 0.3
	ones := tapetest.Upload(b, slices.Repeat([]float64{1}, n*channels*inner), n, channels, inner)
	run := func(training bool, layer nn.Dropout2d) (y, grad []float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetSeed(3)
		tape.SetTraining(training)
		x := tape.Leaf(ones)
		v := layer.Forward(tape, x)
		y = tapetest.Read[float64](b, v.Value())
		_, err := tape.Backward(tape.Sum(v))
		require.NoError(t, err)
		grad = tapetest.Read[float64](b, x.Grad())
		require.NoError(t, tape.Close())
		return y, grad
	}
	y, grad := run(true, nn.Dropout2d{P: p})
	assert.Equal(t, y, grad)
	left := 0.0
	for c := 0; c < len(y); c += inner {
		require.Equal(t, slices.Repeat(y[c:c+1], inner), y[c:c+inner])
		if y[c] != 0 {
			require.Equal(t, 1/(1-p), y[c])
			left++
		}
	}
	assert.InDelta(t, 1-p, left/(n*channels), 5*math.Sqrt(p*(1-p)/(n*channels)))
	y, grad = run(true, nn.Dropout2d{P: 1})
	assert.Equal(t, make([]float64, len(y)), y)
	assert.Equal(t, y, grad)
	y, _ = run(false, nn.Dropout2d{P: p})
	assert.Equal(t, slices.Repeat([]float64{1}, len(y)), y)
	for _, c := range []struct {
		p     float64
		shape int
		want  error
	}{{1.5, 2, autograd.ErrInvalid}, {0.5, 1, tensor.ErrShape}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.Dropout2d(tape.Reshape(tape.Input(onesOf(b, 4)), []int{2, 2, 4}[2*(2-c.shape):]...), c.p)
		assert.ErrorIs(t, tape.Close(), c.want)
	}
}
