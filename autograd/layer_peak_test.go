package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestLayerPeaks: the memory that layers of pictures hold between the passes, beside their result,
// and at the peak of the backward pass, in multiples of their argument.
func TestLayerPeaks(t *testing.T) {
	b := tapetest.Open(t, 1<<30)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	const unit, slack = 4 * 8 * 64 * 64 * 4, 16 << 10
	x := in.Tensor(make([]float64, unit/4), 4, 8, 64, 64)
	prelu, norm := in.PReLU(8), in.InstanceNorm(8, nn.Affine())
	require.NoError(t, in.Err())
	for _, c := range []struct {
		name  string
		layer nn.Layer
		// peak is that of the gradients of result and argument, and of the memory that the layer
		// holds
		result, held, peak int64
	}{
		{"nearest", nn.Upsample{ScaleFactor: []float64{2}}, 4, 0, 4 + 1},
		{"bilinear", nn.Upsample{ScaleFactor: []float64{2}, Bilinear: true}, 4, 0, 4 + 1},
		{"reflected edges", nn.ReflectionPad2d{Padding: []int{32, 32, 0, 0}}, 2, 0, 2 + 1},
		{"repeated edges", nn.ReplicationPad2d{Padding: []int{32, 32, 0, 0}}, 2, 0, 2 + 1},
		{"dropped channels", nn.Dropout2d{P: 0.5}, 1, 0, 1},
		{"PReLU", prelu, 1, 1, 1 + 1},
		{"InstanceNorm", norm, 1, 1, 1 + 1 + 1},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		h := tape.MulScalar(tape.Leaf(x), 2)
		require.NoError(t, b.RT.Synchronize(b.Ctx))
		before := b.Cache.MemoryAllocated() - unit // without h
		y := c.layer.Forward(tape, h)
		h.Release()
		held := b.Cache.MemoryAllocated() - before
		require.InDelta(t, (c.result+c.held)*unit, held, slack, "%s holds", c.name)
		loss := tape.Sum(y)
		y.Release()
		b.Cache.ResetPeakStats()
		_, err := tape.Backward(loss)
		require.NoError(t, err, c.name)
		peak := b.Cache.MaxMemoryAllocated() - before
		require.InDelta(t, c.peak*unit, peak, slack, "%s at the peak", c.name)
		require.NoError(t, tape.Close())
		for _, p := range c.layer.Parameters() {
			require.NoError(t, p.ZeroGrad(b.Ctx))
		}
	}
	require.NoError(t, in.Close())
}
