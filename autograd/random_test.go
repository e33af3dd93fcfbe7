package autograd_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// dropped is what two dropouts of a tape leave of n ones, and the gradient of the first.
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

// TestDropout: an element is left with probability 1-p, whatever its neighbour's and another
// operation's fate is, and with the same seed it is the same ones; its gradient is that of what was
// left.
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

// TestStepsAreSeeded: the steps of a training drop other elements, and those of its repetition the same.
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

// TestDropoutInUse does nothing.
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

// A dropout takes the probabilities 0 and 1, and none beyond, also where it drops nothing.
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
