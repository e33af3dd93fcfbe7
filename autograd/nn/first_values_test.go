package nn_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// firstLayers are the layers of the file of initial values, under PyTorch's names.
var firstLayers = map[string]func(in *nn.Initializer) any{
	"Linear(64, 96)":                      func(in *nn.Initializer) any { return in.Linear(64, 96) },
	"Linear(3, 5)":                        func(in *nn.Initializer) any { return in.Linear(3, 5) },
	"Conv1d(12, 40, 5)":                   func(in *nn.Initializer) any { return in.Conv1d(12, 40, 5) },
	"Conv2d(8, 24, 3)":                    func(in *nn.Initializer) any { return in.Conv2d(8, 24, 3) },
	"Conv2d(8, 24, 3, groups=4)":          func(in *nn.Initializer) any { return in.Conv2d(8, 24, 3, nn.Groups(4)) },
	"ConvTranspose1d(12, 40, 5)":          func(in *nn.Initializer) any { return in.ConvTranspose1d(12, 40, 5) },
	"ConvTranspose2d(8, 24, 3)":           func(in *nn.Initializer) any { return in.ConvTranspose2d(8, 24, 3) },
	"ConvTranspose2d(8, 24, 3, groups=4)": func(in *nn.Initializer) any { return in.ConvTranspose2d(8, 24, 3, nn.Groups(4)) },
	"BatchNorm2d(32)":                     func(in *nn.Initializer) any { return in.BatchNorm(32) },
	"LayerNorm(32)":                       func(in *nn.Initializer) any { return in.LayerNorm(32) },
	"RMSNorm(32)":                         func(in *nn.Initializer) any { return in.RMSNorm(32) },
	"GroupNorm(4, 32)":                    func(in *nn.Initializer) any { return in.GroupNorm(4, 32) },
	"Embedding(200, 30)":                  func(in *nn.Initializer) any { return in.Embedding(200, 30) },
	"Embedding(200, 30, padding_idx=7)":   func(in *nn.Initializer) any { return in.Embedding(200, 30, nn.PaddingIndex(7)) },
	"RNN(20, 36)":                         func(in *nn.Initializer) any { return in.RNN(20, 36) },
	"LSTM(20, 36)":                        func(in *nn.Initializer) any { return in.LSTM(20, 36) },
	"LSTM(20, 36, num_layers=2, bidirectional=True)": func(in *nn.Initializer) any {
		return in.LSTM(20, 36, nn.Layers(2), nn.Bidirectional())
	},
	"GRU(20, 36)":               func(in *nn.Initializer) any { return in.GRU(20, 36) },
	"MultiheadAttention(48, 4)": func(in *nn.Initializer) any { return in.MultiHeadAttention(48, 4) },
	"MultiheadAttention(48, 4, kdim=20, vdim=28)": func(in *nn.Initializer) any {
		return in.MultiHeadAttention(48, 4, nn.KeyDim(20), nn.ValueDim(28))
	},
}

// distribution describes the values of one tensor in the file, of 16 seeds together.
type distribution struct {
	Shape                         []int
	Mean, Std, Min, Max, Kurtosis float64
	Zeros                         int
}

// distributionOf returns the distribution of values.
func distributionOf(shape []int, values []float64) distribution {
	d := distribution{Shape: shape, Min: values[0], Max: values[0]}
	n := float64(len(values))
	for _, v := range values {
		d.Mean += v / n
		d.Min, d.Max = min(d.Min, v), max(d.Max, v)
		if v == 0 {
			d.Zeros++
		}
	}
	var second, fourth float64
	for _, v := range values {
		second += math.Pow(v-d.Mean, 2) / n
		fourth += math.Pow(v-d.Mean, 4) / n
	}
	d.Std = math.Sqrt(second)
	if second > 0 {
		d.Kurtosis = fourth / second / second
	}
	return d
}

// TestFirstValuesArePyTorchs: every layer's initial parameters and buffers have PyTorch's names,
// shapes and distributions. Constants are bit-identical. For others mean, deviation, shape and
// bounds are within six standard errors of the difference.
func TestFirstValuesArePyTorchs(t *testing.T) {
	text, err := os.ReadFile("testdata/first_values.json")
	require.NoError(t, err)
	var recorded struct {
		Layers map[string]map[string]distribution
	}
	require.NoError(t, json.Unmarshal(text, &recorded))
	require.Len(t, firstLayers, len(recorded.Layers))
	b := tapetest.Open(t, 64<<20)
	for name, want := range recorded.Layers {
		values, shapes := map[string][]float64{}, map[string][]int{}
		for seed := range uint64(16) {
			in := nn.Init(b.Ctx, b.RT, nn.Seed(seed), nn.Dtype(tensor.Float64))
			model := firstLayers[name](in)
			require.NoError(t, in.Err())
			state, err := nn.StateDict(model)
			require.NoError(t, err)
			for _, x := range state {
				values[x.Name] = append(values[x.Name], firstOf(b, x.Tensor)...)
				shapes[x.Name] = []int(x.Tensor.Shape())
			}
			require.NoError(t, in.Close())
		}
		require.Len(t, values, len(want), "%s has %v", name, shapes)
		for key, w := range want {
			require.NotEmpty(t, values[key], "%s: %s", name, key)
			got, n := distributionOf(shapes[key], values[key]), float64(len(values[key]))
			require.Equal(t, len(w.Shape), len(got.Shape), "%s: %s", name, key)
			for i := range w.Shape {
				require.Equal(t, w.Shape[i], got.Shape[i], "%s: %s", name, key)
			}
			require.Equal(t, w.Zeros, got.Zeros, "%s: %s", name, key)
			if w.Std == 0 {
				require.Equal(t, w.Mean, got.Min, "%s: %s", name, key)
				require.Equal(t, w.Mean, got.Max, "%s: %s", name, key)
				continue
			}
			const errors = 6 * math.Sqrt2 // both are samples
			require.InDelta(t, w.Mean, got.Mean, errors*w.Std/math.Sqrt(n), "%s: the mean of %s", name, key)
			require.InDelta(t, w.Std, got.Std, errors*w.Std*math.Sqrt((w.Kurtosis-1)/(4*n)), "%s: the deviation of %s", name, key)
			require.InDelta(t, w.Kurtosis, got.Kurtosis, 0.15*w.Kurtosis, "%s: the shape of %s", name, key)
			if w.Kurtosis < 2.2 { // uniform: the ends are as near as the values are dense
				within := 30 * (w.Max - w.Min) / n
				require.InDelta(t, w.Min, got.Min, within, "%s: the least of %s", name, key)
				require.InDelta(t, w.Max, got.Max, within, "%s: the greatest of %s", name, key)
			}
		}
	}
}

// firstOf are the numbers of a tensor of a state dict.
func firstOf(b *tapetest.Bench, x *tensor.Tensor) []float64 {
	if x.Dtype() == tensor.Float64 {
		return tapetest.Read[float64](b, x)
	}
	var list []float64
	for _, v := range tapetest.Read[int64](b, x) {
		list = append(list, float64(v))
	}
	return list
}
