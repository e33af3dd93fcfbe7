package nn_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestInitialValues: means, deviations and bounds of many numbers, against PyTorch's definitions.
func TestInitialValues(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	const out, inputs, field = 60, 50, 4 // of (60, 50, 2, 2)
	third := math.Sqrt(1.0 / 3)
	for name, c := range map[string]struct {
		initial         nn.Initial
		mean, std       float64
		least, greatest float64 // the bounds, which some number comes near to; 0, 0: there are none
	}{
		"uniform":         {nn.InitUniform(-1, 3), 1, 4 * math.Sqrt(1.0/12), -1, 3},
		"normal":          {nn.InitNormal(2, 3), 2, 3, 0, 0},
		"constant":        {nn.InitConstant(7), 7, 0, 7, 7},
		"xavier uniform":  {nn.InitXavierUniform(2), 0, 2 * math.Sqrt(2.0/((out+inputs)*field)), -2 * math.Sqrt(6.0/((out+inputs)*field)), 2 * math.Sqrt(6.0/((out+inputs)*field))},
		"xavier normal":   {nn.InitXavierNormal(), 0, math.Sqrt(2.0 / ((out + inputs) * field)), 0, 0},
		"kaiming uniform": {nn.InitKaimingUniform(nn.Kaiming{A: math.Sqrt(5)}), 0, third / math.Sqrt(inputs*field), -1 / math.Sqrt(inputs*field), 1 / math.Sqrt(inputs*field)},
		"kaiming normal":  {nn.InitKaimingNormal(nn.Kaiming{}), 0, math.Sqrt(2.0 / (inputs * field)), 0, 0},
		"fan out":         {nn.InitKaimingNormal(nn.Kaiming{FanOut: true, Nonlinearity: "tanh"}), 0, 5.0 / 3 / math.Sqrt(out*field), 0, 0},
		"truncated":       {nn.InitTruncNormal(0, 1, -2, 2), 0, 0.8796, -2, 2},
		"truncated aside": {nn.InitTruncNormal(1, 2, 1, 3), 1 + 2*0.4598622, 2 * 0.2882555, 1, 3},
	} {
		p := in.Draw(c.initial, out, inputs, 2, 2)
		require.NoError(t, in.Err(), name)
		var sum, squares float64
		data := tapetest.Read[float32](b, p.Value())
		for _, v := range data {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(len(data))
		mean := sum / n
		std := math.Sqrt(math.Max(0, squares/n-mean*mean))
		assert.InDelta(t, c.mean, mean, 5*c.std/math.Sqrt(n)+1e-6, "%s: the mean", name)
		assert.InDelta(t, c.std, std, 4*c.std/math.Sqrt(n)+1e-6, "%s: the deviation", name)
		if c.least != 0 || c.greatest != 0 {
			near := 0.01 * (c.greatest - c.least)
			assert.GreaterOrEqual(t, float64(slices.Min(data)), c.least-1e-6, name)
			assert.LessOrEqual(t, float64(slices.Max(data)), c.greatest+1e-6, name)
			assert.InDelta(t, c.least, float64(slices.Min(data)), near+1e-9, name)
			assert.InDelta(t, c.greatest, float64(slices.Max(data)), near+1e-9, name)
		}
	}
	require.NoError(t, in.Close())
}

// TestInitialMatrices: an identity, and vectors that are orthogonal.
func TestInitialMatrices(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	assert.Equal(t, []float64{1, 0, 0, 0, 1, 0}, tapetest.Read[float64](b, in.Draw(nn.InitEye(), 2, 3).Value()))
	for _, shape := range [][]int{{5, 9}, {9, 5}, {4, 4}, {3, 2, 2}, {1, 1}, {7, 1}} {
		data := tapetest.Read[float64](b, in.Draw(nn.InitOrthogonal(3), shape...).Value())
		rows, cols := shape[0], len(data)/shape[0]
		at := func(v, i int) float64 { return data[i*cols+v] }
		vectors, n := cols, rows
		if rows < cols {
			vectors, n, at = rows, cols, func(v, i int) float64 { return data[v*cols+i] }
		}
		for v := range vectors {
			for w := range vectors {
				sum, want := 0.0, 0.0
				for i := range n {
					sum += at(v, i) * at(w, i)
				}
				if v == w {
					want = 9
				}
				assert.InDelta(t, want, sum, 1e-12, "%v: %d and %d", shape, v, w)
			}
		}
	}
	require.NoError(t, in.Close())
}

// TestReset overwrites a parameter in place, in its own dtype.
func TestReset(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	p, memory := b.Number(1), tensor.Shape(nil)
	before := p.Value()
	in.Reset(p, nn.InitConstant(5))
	require.NoError(t, in.Err())
	assert.Same(t, before, p.Value())
	assert.Equal(t, []float64{5}, tapetest.Read[float64](b, p.Value()))
	assert.Equal(t, uint64(1), p.Value().Version(), "a tape would notice")
	own := nn.Initial(func(_ *rand.Rand, shape tensor.Shape, data []float64) error {
		memory = shape
		data[0] = 8
		return nil
	})
	in.Reset(p, own)
	assert.Equal(t, []float64{8}, tapetest.Read[float64](b, p.Value()))
	assert.Equal(t, tensor.Shape{1}, memory)
	require.NoError(t, in.Close())
}

// TestInitialsRefuse invalid arguments, and the error sticks.
func TestInitialsRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, initial := range map[string]nn.Initial{
		"nothing": nil, "uniform": nn.InitUniform(2, 1), "normal": nn.InitNormal(0, -1), "NaN": nn.InitNormal(math.NaN(), 1),
		"truncated": nn.InitTruncNormal(0, 1, 2, 1), "no deviation": nn.InitTruncNormal(0, 0, 1, 2), "gain": nn.InitXavierUniform(math.Inf(1)), "gains": nn.InitOrthogonal(1, 2),
		"nonlinearity": nn.InitKaimingNormal(nn.Kaiming{Nonlinearity: "gelu"}), "slope": nn.InitKaimingNormal(nn.Kaiming{A: math.NaN()}),
	} {
		in := nn.Init(b.Ctx, b.RT)
		p := in.Draw(initial, 2, 3)
		require.ErrorIs(t, in.Err(), autograd.ErrInvalid, name)
		require.Error(t, p.Err())
		require.ErrorIs(t, in.Close(), autograd.ErrInvalid)
	}
	for name, initial := range map[string]nn.Initial{
		"eye": nn.InitEye(), "orthogonal": nn.InitOrthogonal(), "xavier": nn.InitXavierNormal(), "kaiming": nn.InitKaimingUniform(nn.Kaiming{}),
	} {
		in := nn.Init(b.Ctx, b.RT)
		in.Draw(initial, 3)
		require.ErrorIs(t, in.Close(), tensor.ErrShape, name)
	}
	in := nn.Init(b.Ctx, b.RT)
	in.Reset(nil, nn.InitConstant(1))
	require.ErrorIs(t, in.Err(), autograd.ErrInvalid)
	in.Reset(b.Number(1), nn.InitConstant(1))
	require.ErrorIs(t, in.Close(), autograd.ErrInvalid)
	mine := errors.New("mine")
	in = nn.Init(b.Ctx, b.RT)
	in.Draw(func(*rand.Rand, tensor.Shape, []float64) error { return mine }, 2)
	require.ErrorIs(t, in.Close(), mine)
	assert.Zero(t, b.Live()-1, "all but the parameter of the test")
	for name, want := range map[string]float64{"linear": 1, "tanh": 5.0 / 3, "relu": math.Sqrt2, "leaky_relu": math.Sqrt(2 / 1.0001), "selu": 0.75} {
		g, err := nn.Gain(name)
		require.NoError(t, err)
		assert.InDelta(t, want, g, 1e-15)
	}
}
