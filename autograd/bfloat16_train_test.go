package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// TestBFloat16ReferenceRun trains in bfloat16 what PyTorch has trained in float32. The losses are
// within 2^-9 of PyTorch's, which is one rounding to bfloat16. The measured difference is at most
// 0.0008.
func TestBFloat16ReferenceRun(t *testing.T) {
	for name, settings := range runs {
		t.Run(name, func(t *testing.T) {
			var f runFile
			readReference(t, filepath.Join("models", name+".json.gz"), &f)
			b := tapetest.Open(t, 1<<30)
			in := nn.Init(b.Ctx, b.RT)
			defer func() { require.NoError(t, in.Close()) }()
			r := &trainingRun{t: t, b: b, in: in, f: &f, settings: settings, compute: tensor.BFloat16, near: [2]float64{0x1p-9, 0x1p-4}}
			r.model = settings.model(in, shapesOf(t, name))
			require.NoError(t, in.Err())
			r.load(name)
			if testing.Short() || race.Enabled {
				f.Steps = f.Steps[:2]
			}
			r.train()
		})
	}
}

// TestBFloat16TrainsAsFloat32 compares 200 steps with those of the same training in float32, on
// noisy data that can't be learnt by heart.
func TestBFloat16TrainsAsFloat32(t *testing.T) {
	steps := 200
	if testing.Short() || race.Enabled {
		steps = 5
	}
	b := tapetest.Open(t, 1<<30)
	for name, model := range map[string]func(in *nn.Initializer) (nn.Layer, func(random *rand.Rand) (x *tensor.Tensor, labels []int32)){
		"mlp": func(in *nn.Initializer) (nn.Layer, func(*rand.Rand) (*tensor.Tensor, []int32)) {
			return nn.Sequential{in.Linear(20, 64), nn.ReLU{}, in.LayerNorm(64), in.Linear(64, 64), nn.GELU{}, in.Linear(64, 5)}, func(random *rand.Rand) (*tensor.Tensor, []int32) {
				return noisyPoints(b, random, 64, 20, 5)
			}
		},
		"gpt": func(in *nn.Initializer) (nn.Layer, func(*rand.Rand) (*tensor.Tensor, []int32)) {
			sizes := map[string][]int{"tok.weight": {23, 32}, "pos.weight": {16, 32}}
			return nn.LayerOf(newRunGPT(in, func(name string) []int { return sizes[name] })), func(random *rand.Rand) (*tensor.Tensor, []int32) {
				return noisyText(b, random, 8, 16, 23)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(dtype tensor.Dtype) (losses []float64) {
				in := nn.Init(b.Ctx, b.RT, nn.Seed(5), nn.ComputeDtype(dtype))
				m, data := model(in)
				opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(m), optim.AdamConfig{LR: new(3e-3), WeightDecay: new(0.01)}))
				random := rand.New(rand.NewPCG(6, 7))
				for _, tape := range in.Steps(steps) {
					x, labels := data(random)
					y, err := tensor.FromSlice(b.Ctx, b.RT, labels)
					require.NoError(t, err)
					logits := m.Forward(tape, tape.Input(x))
					loss := tape.CrossEntropy(tape.Reshape(logits, -1, logits.Shape()[logits.Rank()-1]), y).Keep()
					optim.Minimize(tape, loss, opt)
					losses = append(losses, loss.Item())
					require.NoError(t, x.Release())
					require.NoError(t, y.Release())
				}
				require.NoError(t, in.Close())
				return losses
			}
			wide, half := run(tensor.Float32), run(tensor.BFloat16)
			require.Len(t, half, steps)
			worst, sum := 0.0, 0.0
			for i, v := range wide {
				worst, sum = max(worst, math.Abs(half[i]-v)/v), sum+(half[i]-v)/v
			}
			t.Logf("worst %.5f, mean %.6f, losses %.3f to %.3f", worst, sum/float64(steps), wide[0], wide[len(wide)-1])
			assert.Less(t, worst, 0x1p-6, "the worst step; 0.0033 was measured")
			assert.Less(t, math.Abs(sum)/float64(steps), 0x1p-10, "the mean of all steps; 0.0001 was measured")
			if steps == 200 {
				assert.Less(t, wide[steps-1], 0.8*wide[0], "it learns")
			}
		})
	}
}

// noisyPoints are normal random points, whose classes are those of the greatest of their first
// coordinates, except for a fifth.
func noisyPoints(b *tapetest.Bench, random *rand.Rand, rows, n, classes int) (*tensor.Tensor, []int32) {
	data, labels := make([]float32, rows*n), make([]int32, rows)
	for i := range data {
		data[i] = float32(random.NormFloat64())
	}
	for r := range labels {
		for c := range classes {
			if data[r*n+c] > data[r*n+int(labels[r])] {
				labels[r] = int32(c)
			}
		}
		if random.IntN(5) == 0 {
			labels[r] = int32(random.IntN(classes))
		}
	}
	x, err := tensor.FromSlice(b.Ctx, b.RT, data, rows, n)
	require.NoError(b.T, err)
	return x, labels
}

// noisyText returns sequences in which the next letter follows from the last two, except for a
// fifth.
func noisyText(b *tapetest.Bench, random *rand.Rand, rows, steps, letters int) (*tensor.Tensor, []int32) {
	var in, next []int32
	for range rows {
		a, c := random.IntN(letters), random.IntN(letters)
		for range steps {
			in = append(in, int32(c))
			a, c = c, (2*c+a+1)%letters
			if random.IntN(5) == 0 {
				c = random.IntN(letters)
			}
			next = append(next, int32(c))
		}
	}
	x, err := tensor.FromSlice(b.Ctx, b.RT, in, rows, steps)
	require.NoError(b.T, err, fmt.Sprint(rows, steps))
	return x, next
}
