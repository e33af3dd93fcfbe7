package nn_test

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

// TestLayersOfPictures: layers have PyTorch's names, shapes and initial values, and compute.
func TestLayersOfPictures(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer in.Close()
	norm := in.BatchNorm(4)
	model := nn.Sequential{
		in.Conv2d(2, 4, 3, nn.Stride(2), nn.Padding(1), nn.NoBias()), norm, nn.ReLU{}, in.Conv2d(4, 6, 0, nn.Kernel(1, 2), nn.Groups(2)),
		in.GroupNorm(3, 6), nn.MaxPool2d{Kernel: []int{2}, Stride: []int{1}}, nn.AvgPool2d{Kernel: []int{2}, Padding: []int{1}},
		in.ConvTranspose2d(6, 4, 2, nn.Stride(2), nn.OutputPadding(1), nn.Groups(2)), in.LayerNorm(0, nn.NormalizedShape(5, 5)), nn.Dropout{P: 0.25},
		nn.AdaptiveAvgPool2d{Size: []int{1, 5}}, nn.Flatten{}, in.RMSNorm(20), in.Linear(20, 3),
	}
	require.NoError(t, in.Err())
	var names []string
	for _, p := range model.Parameters() {
		names = append(names, p.Name)
	}
	for _, buffer := range model.Buffers() {
		names = append(names, buffer.Name)
	}
	assert.Equal(t, []string{"0.weight", "1.weight", "1.bias", "3.weight", "3.bias", "4.weight", "4.bias", "7.weight", "7.bias", "8.weight", "8.bias",
		"12.weight", "13.weight", "13.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}, names)
	shapes := map[string][]int{"0.weight": {4, 2, 3, 3}, "3.weight": {6, 2, 1, 2}, "7.weight": {6, 2, 2, 2}, "8.bias": {5, 5}, "12.weight": {20}}
	fans := map[string]float64{"0.weight": 18, "3.weight": 4, "3.bias": 4, "7.weight": 8, "7.bias": 8}
	for _, p := range model.Parameters() {
		if want, ok := shapes[p.Name]; ok {
			assert.Equal(t, want, []int(p.Value().Shape()), p.Name)
		}
		if fan, ok := fans[p.Name]; ok {
			for _, v := range tapetest.Read[float64](b, p.Value()) {
				assert.LessOrEqual(t, math.Abs(v), 1/math.Sqrt(fan), p.Name)
			}
		}
	}
	x := in.Tensor(make([]float64, 3*2*7*8), 3, 2, 7, 8)
	for range in.Steps(2) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		y := model.Forward(tape, tape.Input(x))
		require.NoError(t, tape.Err())
		assert.Equal(t, []int{3, 3}, []int(y.Shape()))
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		for _, p := range model.Parameters() {
			assert.NotNil(t, p.Grad(), p.Name)
		}
	}
	assert.Equal(t, []int64{2}, tapetest.Read[int64](b, norm.Batches))
	tape := autograd.NoGrad(b.Ctx, b.RT)
	model.Forward(tape, tape.Input(x))
	require.NoError(t, tape.Close())
	assert.Equal(t, []int64{2}, tapetest.Read[int64](b, norm.Batches), "a tape that does not train counts no batches")
}

// TestLayersRefuse: errors name the option or the numbers that a layer does not take.
func TestLayersRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for want, make := range map[string]func(in *nn.Initializer){
		"Conv2d(2, 4, 3): invalid argument: the layer takes no option OutputPadding": func(in *nn.Initializer) { in.Conv2d(2, 4, 3, nn.OutputPadding(1)) },
		"ConvTranspose2d(2, 4, 3): invalid argument: the layer takes no option SamePadding": func(in *nn.Initializer) {
			in.ConvTranspose2d(2, 4, 3, nn.SamePadding())
		},
		"Conv2d(3, 4, 3): invalid argument: groups 2":                             func(in *nn.Initializer) { in.Conv2d(3, 4, 3, nn.Groups(2)) },
		"Conv2d(3, 4, 0): invalid argument: window [0 0]":                         func(in *nn.Initializer) { in.Conv2d(3, 4, 0) },
		"Conv1d(3, 4, 3): invalid argument: groups 1, window [1 2]":               func(in *nn.Initializer) { in.Conv1d(3, 4, 3, nn.Kernel(1, 2)) },
		"BatchNorm(3): invalid argument: momentum +Inf":                           func(in *nn.Initializer) { in.BatchNorm(3, nn.Momentum(math.Inf(1))) },
		"LayerNorm(3): invalid argument: eps -1":                                  func(in *nn.Initializer) { in.LayerNorm(3, nn.Eps(-1)) },
		"GroupNorm(2, 3): invalid argument: want groups that divide the channels": func(in *nn.Initializer) { in.GroupNorm(2, 3) },
		"RMSNorm(3): invalid argument: the layer takes no option NoBias":          func(in *nn.Initializer) { in.RMSNorm(3, nn.NoBias()) },
	} {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		make(in)
		require.ErrorIs(t, in.Err(), autograd.ErrInvalid, want)
		assert.ErrorContains(t, in.Err(), want)
		assert.Error(t, in.Close())
	}
	for name, layer := range map[string]nn.Layer{"Convolution": (*nn.Convolution)(nil), "BatchNorm": (*nn.BatchNorm)(nil), "LayerNorm": (*nn.LayerNorm)(nil),
		"GroupNorm": (*nn.GroupNorm)(nil), "RMSNorm": (*nn.RMSNorm)(nil)} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		layer.Forward(tape, tape.Input(tapetest.Upload(b, []float64{1, 2}, 1, 2)))
		assert.ErrorContains(t, tape.Close(), name+": invalid argument: the layer is nil")
		assert.Empty(t, layer.Parameters())
	}
}

// TestRunningStatistics follow PyTorch's rule: with a momentum of NaN they are the mean of all
// batches. A layer may have none, and a tape that does not train normalises by them.
func TestRunningStatistics(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer in.Close()
	all, own := in.BatchNorm(1, nn.Momentum(math.NaN()), nn.NoAffine(), nn.Eps(1e-9)), in.BatchNorm(1, nn.NoRunningStatistics(), nn.NoAffine())
	require.NoError(t, in.Err())
	assert.Empty(t, own.Buffers())
	for _, batch := range [][]float64{{0, 2, 4}, {10, 10, 10}, {5, 7, 6}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		all.Forward(tape, tape.Input(tapetest.Upload(b, batch, 3, 1)))
		require.NoError(t, tape.Close())
	}
	assert.InDelta(t, 6, tapetest.Read[float64](b, all.Mean)[0], 1e-12)
	assert.InDelta(t, 5.0/3, tapetest.Read[float64](b, all.Var)[0], 1e-12)
	tape := autograd.NoGrad(b.Ctx, b.RT)
	y := all.Forward(tape, tape.Input(tapetest.Upload(b, []float64{6 + math.Sqrt(5.0/3)}, 1, 1)))
	assert.InDelta(t, 1, y.Item(), 1e-6)
	z := own.Forward(tape, tape.Input(tapetest.Upload(b, []float64{1, 3}, 2, 1)))
	require.NoError(t, tape.Err())
	assert.InDelta(t, -1, tapetest.Read[float64](b, z.Value())[0], 1e-4)
	require.NoError(t, tape.Close())
}
