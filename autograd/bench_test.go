package autograd_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// BenchmarkStep/MLP is one training step of 784-512-512-10 with Adam at batch 128 in float32, data
// already on the device.
func BenchmarkStep(b *testing.B) {
	b.Run("MLP", func(b *testing.B) {
		bn := tapetest.Open(b, 256<<20)
		model := bn.MLP(tensor.DtypeOf[float32](), 784, 512, 512, 10)
		opt, err := tapetest.WithErr(optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
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
		x, y := tapetest.Upload(bn, images, 128, 784), tapetest.Upload(bn, labels, 128)
		step := func() {
			require.NoError(b, opt.ZeroGrad(bn.Ctx))
			tape := autograd.NewTape(bn.Ctx, bn.RT)
			loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
			require.NoError(b, err)
			require.NoError(b, opt.Step(bn.Ctx))
			_, err = tensor.Item[float32](bn.Ctx, loss)
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

// BenchmarkTape measures the cost of an operation on a tape, with almost no computation: a chain of
// 64 operations on 16 floats that need a gradient, then Backward. Each chain has a new tape, which
// is closed; or with reset, all have one, which is reset. ns/operation is the time of a chain over
// 64, with one Synchronize at the end of all chains.
//
//	Forward   without Backward
//	Backward  one kernel forward and one backward for each operation
//	Products  one forward, three backward: both factors have gradients, and one of them is every product's
func BenchmarkTape(b *testing.B) {
	const chain = 64
	for _, c := range []struct {
		name      string
		operation func(tape *autograd.Tape, x, w *autograd.Variable) *autograd.Variable
		backward  bool
	}{
		{"Forward", func(tape *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return tape.Tanh(x) }, false},
		{"Backward", func(tape *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return tape.Tanh(x) }, true},
		{"Products", func(tape *autograd.Tape, x, w *autograd.Variable) *autograd.Variable { return tape.Mul(x, w) }, true},
	} {
		run := func(b *testing.B, reset bool) {
			bn := tapetest.Open(b, 64<<20)
			x := tapetest.Upload(bn, make([]float32, 16), 16)
			defer x.Release()
			tape := autograd.NewTape(bn.Ctx, bn.RT)
			step := func() error {
				y, w := tape.Leaf(x), tape.Leaf(x)
				for range chain {
					y = c.operation(tape, y, w)
				}
				if c.backward {
					if _, err := tape.Backward(tape.Sum(y)); err != nil {
						return err
					}
				}
				if reset {
					return tape.Reset(bn.Ctx)
				}
				err := tape.Close()
				tape = autograd.NewTape(bn.Ctx, bn.RT)
				return err
			}
			for range 3 {
				require.NoError(b, step())
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N { // not b.Loop, which does not time what comes after it
				if err := step(); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, bn.RT.Synchronize(bn.Ctx))
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*chain), "ns/operation")
			require.NoError(b, tape.Close())
		}
		b.Run(c.name+"/new", func(b *testing.B) { run(b, false) })
		b.Run(c.name+"/reset", func(b *testing.B) { run(b, true) })
	}
}
