package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestPeakMemoryOfAStep: the peak of a training step is only the memory that it needs: parameters,
// gradients, the optimiser's state, the values saved for the backward pass, and the batch.
func TestPeakMemoryOfAStep(t *testing.T) {
	const batch, bound = 128, 1.15
	b := tapetest.Open(t, 256<<20)
	model := b.MLP(tensor.Float32, 784, 512, 512, 10)
	params := model.Parameters()
	opt, err := tapetest.WithErr(optim.NewAdam(params, optim.AdamConfig{}))
	require.NoError(t, err)
	defer opt.Close()
	require.NoError(t, opt.Prepare(b.Ctx))

	images := int64(batch * 784 * 4)
	labels := int64(batch * 4)
	activations := int64(batch * (512 + 512 + 10) * 4)
	needed := 4*params.Bytes() + activations + images + labels

	var allocated, reserved int64
	for step := range 6 {
		b.Cache.ResetPeakStats()
		x, err := b.RT.Full(b.Ctx, 0.5, tensor.Float32, batch, 1, 28, 28)
		require.NoError(t, err)
		y, err := tensor.Labels(b.Ctx, b.RT, make([]int, batch), 10)
		require.NoError(t, err)
		require.NoError(t, opt.ZeroGrad(b.Ctx))
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
		require.NoError(t, err)
		require.NoError(t, opt.Step(b.Ctx))
		_, err = tensor.Item[float32](b.Ctx, loss)
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		require.NoError(t, x.Release())
		require.NoError(t, y.Release())

		s := b.Cache.Stats()
		peak := s.RequestedBytes.All.Peak - b.OwnBytes
		assert.LessOrEqual(t, float64(peak), bound*float64(needed), "step %d: %d bytes at the peak, %d needed", step, peak, needed)
		if step == 0 {
			t.Logf("peak %d bytes requested, %d needed: %.3f", peak, needed, float64(peak)/float64(needed))
		}
		if step > 0 {
			assert.Equal(t, allocated, s.AllocatedBytes.All.Peak, "allocated at the peak of step %d", step)
		}
		if step > 3 {
			assert.Equal(t, reserved, s.ReservedBytes.All.Peak, "reserved in step %d", step)
		}
		allocated, reserved = s.AllocatedBytes.All.Peak, s.ReservedBytes.All.Peak
	}
}
