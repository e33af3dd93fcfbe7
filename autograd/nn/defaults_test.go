package nn_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// forward returns a layer's result for these numbers.
func forward(b *tapetest.Bench, l nn.Layer, training bool, data []float64, shape ...int) []float64 {
	tape := autograd.NoGrad(b.Ctx, b.RT)
	tape.SetTraining(training)
	y := l.Forward(tape, autograd.Upload(tape, data, shape...))
	require.NoError(b.T, tape.Err())
	values := tapetest.Read[float64](b, y.Value())
	require.NoError(b.T, tape.Close())
	return values
}

// epsOf returns the number that a normalisation adds to a variance, or a mean square, of a².
func epsOf(b *tapetest.Bench, l nn.Layer, a float64, data []float64, shape ...int) float64 {
	y := forward(b, l, true, data, shape...)[0]
	return a*a/(y*y) - a*a
}

// TestDefaultsOfLayersArePyTorchs: options that a program leaves out have the defaults that PyTorch
// 2.11 documents.
func TestDefaultsOfLayersArePyTorchs(t *testing.T) {
	tapetest.RequireDefaults(t, "KVCacheConfig Sequential ReLU Identity Sigmoid Tanh SiLU LogSigmoid AdaptiveAvgPool2d ReflectionPad1d ReflectionPad2d ReplicationPad1d ReplicationPad2d Func", []tapetest.Default{
		{Names: "Linear", Python: "bias=True", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			return tapetest.Signature("bias", in.Linear(1, 1).Bias != nil)
		}},
		{Names: "Convolution", Python: "stride=1, padding=0, dilation=1, groups=1, bias=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.Conv2d(2, 2, 3)
			l.Config.Groups = 0
			// Another stride, padding or dilation gives another size.
			require.Len(b.T, forward(b, l, true, make([]float64, 2*7*7), 1, 2, 7, 7), 2*5*5)
			return tapetest.Signature("stride", 1, "padding", 0, "dilation", 1, "groups", 2/l.Weight.Value().Shape()[1], "bias", l.Bias != nil)
		}},
		{Names: "Convolution", Python: "stride=1, padding=0, output_padding=0, dilation=1, groups=1, bias=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.ConvTranspose2d(2, 2, 3)
			require.Len(b.T, forward(b, l, true, make([]float64, 2*7*7), 1, 2, 7, 7), 2*9*9)
			return tapetest.Signature("stride", 1, "padding", 0, "output_padding", 0, "dilation", 1, "groups", 2/l.Weight.Value().Shape()[1], "bias", l.Bias != nil)
		}},
		{Names: "BatchNorm", Python: "eps=1e-05, momentum=0.1, affine=True, track_running_stats=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.BatchNorm(1)
			forward(b, l, true, []float64{1, 1}, 2, 1)
			return tapetest.Signature("eps", epsOf(b, in.BatchNorm(1), 1e-3, []float64{1e-3, -1e-3}, 2, 1), "momentum", tapetest.Read[float64](b, l.Mean)[0], "affine", l.Weight != nil && l.Bias != nil,
				"track_running_stats", l.Batches != nil)
		}},
		{Names: "LayerNorm", Python: "eps=1e-05, elementwise_affine=True, bias=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.LayerNorm(2)
			return tapetest.Signature("eps", epsOf(b, l, 1e-3, []float64{1e-3, -1e-3}, 1, 2), "elementwise_affine", l.Weight != nil, "bias", l.Bias != nil)
		}},
		{Names: "GroupNorm", Python: "eps=1e-05, affine=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.GroupNorm(1, 2)
			return tapetest.Signature("eps", epsOf(b, l, 1e-3, []float64{1e-3, -1e-3}, 1, 2), "affine", l.Weight != nil && l.Bias != nil)
		}},
		{Names: "InstanceNorm", Python: "eps=1e-05, affine=False, track_running_stats=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.InstanceNorm(1)
			return tapetest.Signature("eps", epsOf(b, l, 1e-3, []float64{1e-3, -1e-3}, 1, 1, 2), "affine", l.Weight != nil, "track_running_stats", len(nn.BuffersOf(l)) > 0)
		}},
		// None means torch.finfo(x.dtype).eps.
		{Names: "RMSNorm", Python: "eps=2.220446e-16, elementwise_affine=True", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			l := in.RMSNorm(2)
			return tapetest.Signature("eps", epsOf(b, l, 1e-8, []float64{1e-8, 1e-8}, 1, 2), "elementwise_affine", l.Weight != nil)
		}},
		{Names: "Embedding", Python: "padding_idx=None, scale_grad_by_freq=False", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			c := in.Embedding(2, 2).Config
			return tapetest.Signature("padding_idx", map[bool]string{true: "None"}[c.PaddingIndex == nil], "scale_grad_by_freq", c.ScaleGradByFreq)
		}},
		{Names: "RNN Recurrent", Python: "num_layers=1, nonlinearity=tanh, bias=True, batch_first=False, dropout=0, bidirectional=False", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			r := in.RNN(1, 1)
			return tapetest.Signature("num_layers", len(r.Cells), "nonlinearity", map[tensor.RecurrentKind]string{tensor.RNNTanh: "tanh"}[r.Kind], "bias", r.Cells[0].BiasIH != nil,
				"batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
		}},
		{Names: "LSTM", Python: "num_layers=1, bias=True, batch_first=False, dropout=0, bidirectional=False", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			r := in.LSTM(1, 1)
			return tapetest.Signature("num_layers", len(r.Cells), "bias", r.Cells[0].BiasIH != nil, "batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
		}},
		{Names: "GRU", Python: "num_layers=1, bias=True, batch_first=False, dropout=0, bidirectional=False", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			r := in.GRU(1, 1)
			return tapetest.Signature("num_layers", len(r.Cells), "bias", r.Cells[0].BiasIH != nil, "batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
		}},
		{Names: "MultiHeadAttention", Python: "dropout=0, bias=True, kdim=None, vdim=None, batch_first=False", Got: func(_ *tapetest.Bench, in *nn.Initializer) string {
			m := in.MultiHeadAttention(2, 1)
			own := map[bool]string{true: "None"}[m.InWeight != nil]
			return tapetest.Signature("dropout", m.Dropout, "bias", m.InBias != nil && m.Out.Bias != nil, "kdim", own, "vdim", own, "batch_first", m.BatchFirst)
		}},
		{Names: "ELU", Python: "alpha=1", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("alpha", -forward(b, nn.ELU{}, true, []float64{-99})[0])
		}},
		{Names: "LeakyReLU", Python: "negative_slope=0.01", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("negative_slope", -forward(b, nn.LeakyReLU{}, true, []float64{-1})[0])
		}},
		{Names: "Softplus", Python: "beta=1, threshold=20", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			y := forward(b, nn.Softplus{}, true, []float64{0, 19.9, 20.1})
			require.True(b.T, y[1] > 19.9 && y[2] == 20.1, y)
			return tapetest.Signature("beta", math.Ln2/y[0], "threshold", 20)
		}},
		{Names: "Hardtanh", Python: "min_val=-1, max_val=1", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			y := forward(b, nn.Hardtanh{}, true, []float64{-9, 9})
			return tapetest.Signature("min_val", y[0], "max_val", y[1])
		}},
		{Names: "GELU", Python: "approximate=none", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			exact := 0.5 * (1 + math.Erf(1/math.Sqrt2))
			return tapetest.Signature("approximate", map[bool]string{true: "none"}[math.Abs(forward(b, nn.GELU{}, true, []float64{1})[0]-exact) < 1e-12])
		}},
		// PyTorch has no default for this rank: it warns, and takes the first or the second
		// dimension.
		{Names: "Softmax", Python: "dim=-1", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("dim", map[float64]int{0.5: -1}[forward(b, nn.Softmax{}, true, []float64{1, 1}, 1, 2)[0]])
		}},
		{Names: "LogSoftmax", Python: "dim=-1", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("dim", map[float64]int{-math.Ln2: -1}[forward(b, nn.LogSoftmax{}, true, []float64{1, 1}, 1, 2)[0]])
		}},
		// PyTorch's default is 0.5; the field's comment says so.
		{Names: "Dropout", Python: "p=0", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("p", float64(len(forward(b, nn.Dropout{}, true, []float64{1, 1, 1, 1}))-4))
		}},
		// PyTorch's default is 0.5; the field's comment says so.
		{Names: "Dropout2d", Python: "p=0", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("p", float64(len(forward(b, nn.Dropout2d{}, true, []float64{1, 1, 1, 1}, 1, 4))-4))
		}},
		{Names: "PReLU", Python: "init=0.25", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			return tapetest.Signature("init", -forward(b, in.PReLU(1), true, []float64{-1})[0])
		}},
		// TestReference tests align_corners=False.
		{Names: "Upsample", Python: "mode=nearest", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			y := forward(b, nn.Upsample{Size: []int{3}}, true, []float64{1, 2}, 1, 1, 2)
			return tapetest.Signature("mode", map[bool]string{true: "nearest"}[slices.Equal(y, []float64{1, 1, 2})])
		}},
		{Names: "MaxPool2d", Python: "stride=kernel_size, padding=0, dilation=1, ceil_mode=False", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			require.Len(b.T, forward(b, nn.MaxPool2d{Kernel: []int{2}}, true, make([]float64, 25), 1, 1, 5, 5), 4)
			return tapetest.Signature("stride", "kernel_size", "padding", 0, "dilation", 1, "ceil_mode", false)
		}},
		{Names: "AvgPool2d", Python: "stride=kernel_size, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			require.Len(b.T, forward(b, nn.AvgPool2d{Kernel: []int{2}}, true, make([]float64, 25), 1, 1, 5, 5), 4)
			corner := forward(b, nn.AvgPool2d{Kernel: []int{2}, Padding: []int{1}}, true, []float64{1, 1, 1, 1}, 1, 1, 2, 2)[0]
			return tapetest.Signature("stride", "kernel_size", "padding", 0, "ceil_mode", false, "count_include_pad", corner == 0.25, "divisor_override", "None")
		}},
		{Names: "Flatten", Python: "start_dim=1, end_dim=-1", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			tape := autograd.NoGrad(b.Ctx, b.RT)
			defer tape.Close()
			require.Equal(b.T, tensor.Shape{2, 6}, nn.Flatten{}.Forward(tape, autograd.Upload(tape, make([]float64, 12), 2, 2, 3)).Shape())
			return tapetest.Signature("start_dim", 1, "end_dim", -1)
		}},
		{Names: "Kaiming", Python: "a=0, mode=fan_in, nonlinearity=leaky_relu", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			want, err := nn.Gain("leaky_relu", 0)
			require.NoError(b.T, err)
			// The numbers are within gain*sqrt(3/fan_in).
			data := tapetest.Read[float64](b, in.Draw(nn.InitKaimingUniform(nn.Kaiming{}), 1000, 3).Value())
			require.InDelta(b.T, want, slices.Max(data), 0.01)
			return tapetest.Signature("a", nn.Kaiming{}.A, "mode", map[bool]string{false: "fan_in"}[nn.Kaiming{}.FanOut], "nonlinearity", "leaky_relu")
		}},
	})
}

// TestZeroOfALayerIsNotTheDefault: 0 can be set if the default is another number.
func TestZeroOfALayerIsNotTheDefault(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	defer func() { require.NoError(t, in.Close()) }()
	require.Equal(t, []float64{0, 2}, forward(b, nn.ELU{Alpha: new(0.0)}, true, []float64{-1, 2}))
	require.Equal(t, []float64{0, 2}, forward(b, nn.LeakyReLU{Slope: new(0.0)}, true, []float64{-1, 2}))
	require.Equal(t, 1.0, forward(b, nn.Softplus{Threshold: new(0.0)}, true, []float64{1})[0])
	norm := in.BatchNorm(1, nn.Momentum(0))
	require.NoError(t, in.Err())
	require.Equal(t, 0.0, *norm.Momentum)
	x, still := []float64{2, 4, 9}, in.BatchNorm(1)
	require.Equal(t, forward(b, still, true, x, 3, 1), forward(b, norm, true, x, 3, 1), "a batch is normalised by its own statistics")
	require.Equal(t, []float64{0, 1}, append(tapetest.Read[float64](b, norm.Mean), tapetest.Read[float64](b, norm.Var)...), "and the running ones stay")
	require.Equal(t, []int64{1}, tapetest.Read[int64](b, norm.Batches))
	require.InDelta(t, 2, forward(b, norm, false, []float64{2}, 1, 1)[0], 1e-4)
}
