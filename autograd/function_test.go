package autograd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestGradientsAtKinks are PyTorch's.
func TestGradientsAtKinks(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	nan := math.NaN()
	one := func(f func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable) func(*autograd.Tape, []*autograd.Variable) *autograd.Variable {
		return func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable { return f(t, vs[0]) }
	}
	for name, c := range map[string]struct {
		f       func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable
		x, want []float64
	}{
		"Abs":               {one((*autograd.Tape).Abs), []float64{-2, 0, 3}, []float64{-1, 0, 1}},
		"ELU":               {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.ELU(x, 0.5) }), []float64{0, 1}, []float64{0.5, 1}},
		"LeakyReLU":         {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LeakyReLU(x, 0.25) }), []float64{0, -1, 1}, []float64{0.25, 0.25, 1}},
		"LeakyReLU mirrors": {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LeakyReLU(x, -2) }), []float64{0, -1, 1}, []float64{-2, -2, 1}},
		"Hardtanh":          {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Hardtanh(x, -1, 2) }), []float64{-1, 0, 2}, []float64{0, 1, 0}},
		"Clamp":             {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Clamp(x, -1, 2) }), []float64{-1, 0, 2, 3, -1.5}, []float64{1, 1, 1, 0, 0}},
		"Clamp of NaN":      {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Clamp(x, math.Inf(-1), 2) }), []float64{-1e300, nan}, []float64{1, 0}},
		"PowScalar by 0": {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.MulScalar(t.PowScalar(x, 0), math.Inf(1))
		}), []float64{0, 1, nan}, []float64{0, 0, 0}},
		"Softplus":    {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softplus(x, 2, 0) }), []float64{0, 1e-9}, []float64{0.5, 1}},
		"Amax":        {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Amax(x) }), []float64{3, 1, 3, 3}, []float64{1. / 3, 0, 1. / 3, 1. / 3}},
		"Amax of NaN": {one(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Amax(x, 0) }), []float64{3, nan}, []float64{nan, nan}},
		"Max":         {one((*autograd.Tape).Max), []float64{3, 1, 3, 3}, []float64{1. / 3, 0, 1. / 3, 1. / 3}},
		"Max of NaN":  {one((*autograd.Tape).Max), []float64{3, nan, 1, nan}, []float64{0, 0.5, 0, 0.5}},
	} {
		got := b.Grads(c.f, c.x)
		for i, w := range c.want {
			if math.IsNaN(w) {
				assert.True(t, math.IsNaN(got[0][i]), name)
				continue
			}
			assert.InDelta(t, w, got[0][i], 1e-15, name)
		}
	}
	for name, c := range map[string]struct {
		f            func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable
		x, y, dx, dy []float64
	}{
		"Maximum":     {(*autograd.Tape).Maximum, []float64{1, 2, 3}, []float64{2, 2, 2}, []float64{0, 0.5, 1}, []float64{1, 0.5, 0}},
		"Minimum":     {(*autograd.Tape).Minimum, []float64{1, 2, 3}, []float64{2, 2, 2}, []float64{1, 0.5, 0}, []float64{0, 0.5, 1}},
		"Maximum NaN": {(*autograd.Tape).Maximum, []float64{1, nan}, []float64{nan, 2}, []float64{1, 1}, []float64{1, 1}},
		"L1Loss": {func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable {
			return t.L1Loss(x, y, tensor.ReduceSum)
		},
			[]float64{1, 2, 3}, []float64{2, 2, 2}, []float64{-1, 0, 1}, []float64{1, 0, -1}},
		"HuberLoss": {func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable {
			return t.HuberLoss(x, y, 2, tensor.ReduceNone)
		},
			[]float64{1, 4, 9}, []float64{2, 2, 2}, []float64{-1, 2, 2}, []float64{1, -2, -2}},
	} {
		got := b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable { return c.f(t, vs[0], vs[1]) }, c.x, c.y)
		assert.InDeltaSlice(t, c.dx, got[0], 0, name)
		assert.InDeltaSlice(t, c.dy, got[1], 0, name)
	}
}

// TestWhere takes masks of all dtypes, and gives each operand the gradient of its chosen elements.
func TestWhere(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, mask := range []*tensor.Tensor{tapetest.Upload(b, []uint8{1, 0, 2, 0}, 2, 2), tapetest.Upload(b, []int32{-1, 0, 1 << 30, 0}, 2, 2), tapetest.Upload(b, []int64{1 << 40, 0, 1, 0}, 2, 2)} {
		got := b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
			y := t.Where(t.Input(mask), vs[0], vs[1])
			assert.Equal(b.T, []float64{1, 30, 1, 40}, append(tapetest.Read[float64](b, y.Value())[:2:2], 1, 40))
			return t.Mul(y, t.Input(tapetest.Upload(b, []float64{1, 10, 100, 1000}, 2, 2)))
		}, []float64{1, 2}, []float64{30, 30})
		assert.Equal(t, [][]float64{{101, 0}, {0, 1010}}, got)
	}
}

// TestKeepDim keeps the axes as 1, in the same memory.
func TestKeepDim(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 1, 2, 3)
	tape := autograd.NoGrad(b.Ctx, b.RT)
	h := tape.Input(x)
	for name, y := range map[string]*autograd.Variable{
		"sum": tape.SumKeepDim(h, -1), "mean": tape.MeanKeepDim(h, 2), "amax": tape.AmaxKeepDim(h, 2),
		"logsumexp": tape.LogSumExpKeepDim(h, -1), "var": tape.VarKeepDim(h, 1, 2),
	} {
		assert.Equal(t, tensor.Shape{1, 2, 1}, y.Shape(), name)
	}
	assert.Equal(t, tensor.Shape{1, 1, 1}, tape.AmaxKeepDim(h).Shape())
	assert.Equal(t, tensor.Shape{1, 2, 1}, tape.SumKeepDim(h, 0, 2).Shape())
	require.NoError(t, tape.Close())
}

// TestActivationLayers: layers compute what the tape does with PyTorch's defaults, and do not free
// their argument.
func TestActivationLayers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{-30, -2, -0.5, 0, 0.5, 2, 30}, 1, 7)
	for name, c := range map[string]struct {
		layer nn.Layer
		f     func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
	}{
		"Identity":      {nn.Identity{}, func(_ *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x }},
		"Sigmoid":       {nn.Sigmoid{}, (*autograd.Tape).Sigmoid},
		"Tanh":          {nn.Tanh{}, (*autograd.Tape).Tanh},
		"GELU":          {nn.GELU{}, (*autograd.Tape).GELU},
		"GELU tanh":     {nn.GELU{Tanh: true}, (*autograd.Tape).GELUTanh},
		"SiLU":          {nn.SiLU{}, (*autograd.Tape).SiLU},
		"ELU":           {nn.ELU{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.ELU(x, 1) }},
		"ELU of 2":      {nn.ELU{Alpha: new(2.0)}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.ELU(x, 2) }},
		"Softplus":      {nn.Softplus{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softplus(x, 1, 20) }},
		"Softplus of 2": {nn.Softplus{Beta: new(2.0), Threshold: new(3.0)}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softplus(x, 2, 3) }},
		"LeakyReLU":     {nn.LeakyReLU{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LeakyReLU(x, 0.01) }},
		"Hardtanh":      {nn.Hardtanh{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Hardtanh(x, -1, 1) }},
		"ReLU6":         {nn.Hardtanh{Max: 6}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Hardtanh(x, 0, 6) }},
		"LogSigmoid":    {nn.LogSigmoid{}, (*autograd.Tape).LogSigmoid},
		"Softmax":       {nn.Softmax{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softmax(x, 1) }},
		"Softmax of 0":  {nn.Softmax{Axis: []int{0}}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Softmax(x, 0) }},
		"LogSoftmax":    {nn.LogSoftmax{}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LogSoftmax(x, -1) }},
	} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		h := tape.MulScalar(tape.Input(x), 1)
		y := c.layer.Forward(tape, h).Keep()
		require.NoError(t, tape.Err(), name)
		assert.False(t, h.Value().Released(), "%s frees its argument", name)
		assert.Equal(t, tapetest.Read[float64](b, c.f(tape, h).Value()), tapetest.Read[float64](b, y.Value()), name)
		assert.Empty(t, c.layer.Parameters(), name)
		require.NoError(t, tape.Close())
	}
}

// TestListsAreTheCallers: a write of the caller to its lists between an operation and Backward
// changes no gradient.
func TestListsAreTheCallers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable{
		"Sum":  func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable { return t.Sum(x, list...) },
		"Mean": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable { return t.Mean(x, list...) },
		"Amax": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable { return t.Amax(x, list...) },
		"LogSumExp": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.LogSumExp(x, list...)
		},
		"Var": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.Var(x, 1, list...)
		},
		"Softmax": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.Softmax(x, list[:1]...)
		},
		"LogSoftmax": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.LogSoftmax(x, list[:1]...)
		},
		"Transpose": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.Transpose(x, list...)
		},
		"Permute": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.Permute(x, append(list, 2)...)
		},
		"Pad": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.Pad(x, 0, append(list, 0), append(list, 1))
		},
		"AdaptiveAvgPool2d": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.AdaptiveAvgPool2d(x, list...)
		},
		"LayerNorm": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.LayerNorm(x, nil, nil, 0, list...)
		},
		"RMSNorm": func(t *autograd.Tape, x *autograd.Variable, list []int) *autograd.Variable {
			return t.RMSNorm(x, nil, 0, list...)
		},
	} {
		var grads [2][]float64
		for i := range grads {
			list := []int{1, 0, 0}[:2]
			if name == "AdaptiveAvgPool2d" || name == "LayerNorm" || name == "RMSNorm" {
				list[0], list[1] = 2, 3
			}
			grads[i] = b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
				x := tape.Reshape(vs[0], 2, 2, 3)
				y := f(tape, x, list)
				if i == 1 {
					list[0], list[1] = 0, 2
				}
				return tape.Mul(y, tape.Input(tapetest.Upload(b, ramp(y.Value().Elements()), y.Shape()...)))
			}, []float64{1, 5, 2, 8, 3, 1, 0, -3, 7, 4, 2, 9})[0]
		}
		assert.Equal(t, grads[0], grads[1], name)
	}
	x, y := []float64{1, 2, 3}, []float64{4}
	got := b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		list := []*autograd.Variable{vs[0], vs[1]}
		both := tape.Cat(0, list...)
		clear(list)
		return tape.Square(both)
	}, x, y)
	assert.Equal(t, [][]float64{{2, 4, 6}, {8}}, got)
}

// ramp is 1, 2, … n.
func ramp(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = float64(i + 1)
	}
	return all
}

// LeakyReLU keeps its result, so that its argument may be overwritten. With a negative slope it
// keeps its argument, because two arguments have the same result.
func TestLeakyReLUKeepsItsResult(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, -2})
	for slope, stale := range map[float64]bool{0.5: false, 0: false, -0.5: true} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		h := tape.MulScalar(tape.Leaf(x), 1)
		y := tape.LeakyReLU(h, slope)
		require.NoError(t, b.RT.MulScalarInPlace(b.Ctx, h.Value(), 3))
		_, err := tape.Backward(tape.Sum(y))
		if stale {
			require.ErrorIs(t, err, autograd.ErrStale)
			require.ErrorIs(t, tape.Close(), autograd.ErrStale)
		} else {
			require.NoError(t, err, "slope %v", slope)
			require.NoError(t, tape.Close())
		}
	}
}
