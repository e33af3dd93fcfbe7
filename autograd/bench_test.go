package autograd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// BenchmarkStep/MLP is one training step of 784-512-512-10 with Adam at batch 128 in float32, data already on
// the device.
func BenchmarkStep(b *testing.B) {
	b.Run("MLP", func(b *testing.B) {
		bn := open(b, 256<<20)
		model := bn.mlp(tensor.DtypeOf[float32](), 784, 512, 512, 10)
		opt, err := NewAdam(model.Parameters(), AdamConfig{})
		require.NoError(b, err)
		defer opt.Close()
		images, labels := make([]float32, 128*784), make([]int32, 128)
		random := rand.New(rand.NewPCG(2, 0))
		for i := range images {
			images[i] = random.Float32()
		}
		for i := range labels {
			labels[i] = int32(i % 10)
		}
		x, y := upload(bn, images, 128, 784), upload(bn, labels, 128)
		step := func() {
			require.NoError(b, opt.ZeroGrad(bn.ctx))
			tape := NewTape(bn.ctx, bn.rt)
			loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
			require.NoError(b, err)
			require.NoError(b, opt.Step(bn.ctx))
			_, err = tensor.Item[float32](bn.ctx, loss)
			require.NoError(b, err)
			require.NoError(b, tape.Close())
		}
		step() // the first loads kernels, makes the optimiser's state, and warms the cache
		b.ReportAllocs()
		for b.Loop() {
			step()
		}
	})
}
