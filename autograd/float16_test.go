package autograd_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestFloat16TrainsAsFloat32: the losses of an MLP are near those of the same training in float32.
func TestFloat16TrainsAsFloat32(t *testing.T) {
	const steps = 60
	b := tapetest.Open(t, 64<<20)
	run := func(dtype tensor.Dtype) (losses []float64) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(5), nn.ComputeDtype(dtype))
		model := nn.Sequential{in.Linear(20, 32), nn.ReLU{}, in.LayerNorm(32), in.Linear(32, 5)}
		opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-2), WeightDecay: new(0.01)}))
		random := rand.New(rand.NewPCG(6, 7))
		for _, tape := range in.Steps(steps) {
			x, labels := noisyPoints(b, random, 64, 20, 5)
			y, err := tensor.FromSlice(b.Ctx, b.RT, labels)
			require.NoError(t, err)
			logits := model.Forward(tape, tape.Input(x))
			require.Equal(t, dtype, logits.Value().Dtype())
			loss := tape.CrossEntropy(logits, y).Keep()
			optim.Minimize(tape, loss, opt)
			losses = append(losses, loss.Item())
			require.NoError(t, errors.Join(x.Release(), y.Release()))
		}
		for _, p := range model.Parameters() {
			assert.Equal(t, tensor.Float32, p.Value().Dtype(), p.Name)
		}
		require.NoError(t, in.Close())
		return losses
	}
	wide, half := run(tensor.Float32), run(tensor.Float16)
	worst, sum := 0.0, 0.0
	for i, v := range wide {
		worst, sum = max(worst, math.Abs(half[i]-v)/v), sum+(half[i]-v)/v
	}
	t.Logf("worst %.5f, mean %.6f, losses %.3f to %.3f, in float32 to %.3f", worst, sum/steps, half[0], half[steps-1], wide[steps-1])
	assert.Less(t, math.Abs(half[0]-wide[0])/wide[0], 0x1p-11, "before the first update; 0.000006 was measured")
	assert.Less(t, worst, 0x1p-7, "the worst step; 0.0048 was measured, and 0.0061 in bfloat16")
	assert.Less(t, math.Abs(sum)/steps, 0x1p-10, "the mean of all steps")
	assert.Less(t, half[steps-1], 0.8*half[0], "it learns")
}

// TestFloat16TrainsMNIST compares the MLP of TestMNISTAsPyTorch on real digits with float32.
func TestFloat16TrainsMNIST(t *testing.T) {
	const batch = 64
	const steps = 30
	pixels, labels := mnist(t, "train", steps*batch)
	b := tapetest.Open(t, 256<<20)
	run := func(dtype tensor.Dtype) (losses []float64) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(5), nn.ComputeDtype(dtype))
		model := b.MLP(tensor.Float32, 784, 512, 512, 10)
		counterFill[float32](b, model.Parameters())
		opt := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.05), Momentum: 0.9}))
		for step, tape := range in.Steps(steps) {
			at := step * batch
			x, err := tensor.FromSlice(b.Ctx, b.RT, scaled[float32](pixels[at*784:(at+batch)*784]), batch, 784)
			require.NoError(t, err)
			y, err := tensor.Labels(b.Ctx, b.RT, labels[at:at+batch], 10)
			require.NoError(t, err)
			loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y).Keep()
			optim.Minimize(tape, loss, opt)
			losses = append(losses, loss.Item())
			require.NoError(t, errors.Join(x.Release(), y.Release()))
		}
		require.NoError(t, in.Close())
		return losses
	}
	wide, half := run(tensor.Float32), run(tensor.Float16)
	for i, v := range wide {
		assert.InEpsilon(t, v, half[i], 0x1p-7, "step %d", i)
	}
	t.Logf("losses %.4f to %.4f, in float32 to %.4f", half[0], half[steps-1], wide[steps-1])
	assert.Less(t, half[steps-1], 0.9*half[0], "it learns")
}

// TestFloat16Rounds: operands are rounded when they are brought to a tape, and gradients are added
// up in float32.
func TestFloat16Rounds(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	third := tensor.ToF16(1.0 / 3)
	p := master(b, []float32{1.0 / 3, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.SetComputeDtype(tensor.Float16)
	assert.Equal(t, tensor.Float16, tape.ComputeDtype())
	x := tape.Param(p)
	assert.Equal(t, third, tapetest.Read[tensor.F16](b, x.Value())[0])
	assert.InDelta(t, float64(third.Float32()), autograd.Upload(tape, []float32{1.0 / 3}).Item(), 0)
	_, err := tape.Backward(tape.Add(tape.Sum(tape.MulScalar(x, 1)), tape.Sum(tape.MulScalar(x, 0x1p-12))))
	require.NoError(t, errors.Join(err, tape.Close()))
	assert.Equal(t, []float32{1 + 0x1p-12, 1 + 0x1p-12}, tapetest.Read[float32](b, p.Grad()))

	total, err := optim.ClipGradNormOf(b.Ctx, autograd.Parameters{{Name: "p", Parameter: p}}, 1)
	require.NoError(t, err)
	assert.InEpsilon(t, math.Sqrt2*(1+0x1p-12), float64(tapetest.Read[float32](b, total)[0]), 1e-5)
	require.NoError(t, total.Release())

	_, err = autograd.NewParameter(tapetest.Upload(b, []tensor.F16{third}))
	require.ErrorIs(t, err, tensor.ErrDtype)
	require.ErrorContains(t, err, "want a float32 parameter and a tape that computes in float16")
	tape = autograd.NewTape(b.Ctx, b.RT)
	tape.SetComputeDtype(tensor.BFloat16)
	tape.Param(p)
	tape.SetComputeDtype(tensor.Float16)
	tape.Param(p)
	require.ErrorContains(t, tape.Close(), "is on the tape in bfloat16, and the tape computes in float16 now")
}

// TestFloat16Loss is float32, of a prediction in float16 and a target in float32.
func TestFloat16Loss(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	target := autograd.Upload(tape, []float32{1.0 / 3, 1})
	tape.SetComputeDtype(tensor.Float16)
	x := tape.Leaf(tapetest.Upload(b, []float32{1, 3}))
	loss := tape.MSELoss(x, target)
	assert.InDelta(t, (4.0/9+4)/2, loss.Item(), 1e-6)
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	assert.Equal(t, []tensor.F16{tensor.ToF16(2.0 / 3), tensor.ToF16(2)}, tapetest.Read[tensor.F16](b, x.Grad()))
	require.NoError(t, tape.Close())
}
