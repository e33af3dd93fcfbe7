package offload_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// wide returns a model of equal matrices, which are its only large memory.
func wide(b *tapetest.Bench, layers int, offload func(autograd.Parameters)) (*nn.Initializer, nn.Sequential) {
	b.T.Helper()
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
	var model nn.Sequential
	for range layers {
		l := in.Linear(wideWidth, wideWidth, nn.NoBias())
		require.NoError(b.T, in.Err())
		offload(l.Parameters())
		model = append(model, l, nn.Tanh{})
	}
	return in, model
}

const (
	wideWidth  = 128
	wideLayer  = wideWidth * wideWidth * 4 // bytes of a layer's parameters
	wideValues = 4096                      // an upper bound of a layer's other bytes on a batch of one row
)

// rise returns the peak of allocated memory during f, minus the memory before.
func rise(b *tapetest.Bench, f func()) int64 {
	before := b.Cache.MemoryAllocated()
	b.Cache.ResetPeakStats()
	f()
	return b.Cache.MaxMemoryAllocated() - before
}

// TestParametersLowerThePeak: inference holds two layers on the device, or one if none comes ahead,
// and a training step saves the memory of all except two.
func TestParametersLowerThePeak(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const layers = 10
	for _, half := range []bool{false, true} {
		for _, ahead := range []int{-1, 1} {
			o := b.Offloader(tensor.OffloadConfig{Ahead: ahead})
			here := map[int]int64{-1: 1, 1: 2}[ahead]
			run := func(start func(autograd.Parameters)) (infer, train int64) {
				before := b.Bytes()
				in, model := wide(b, layers, start)
				opt, err := tapetest.WithErr(optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.1)}))
				require.NoError(t, err)
				require.NoError(t, offload.State(b.Ctx, opt, o, wideLayer))
				x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
				held := b.Cache.MemoryAllocated()
				for range 3 {
					infer = rise(b, func() {
						tape := autograd.NoGrad(b.Ctx, b.RT)
						if half {
							tape.SetComputeDtype(tensor.BFloat16)
						}
						require.NotNil(t, model.Forward(tape, tape.Input(x)).Value())
						require.NoError(t, tape.Close())
					})
					train = rise(b, func() {
						tape := autograd.NewTape(b.Ctx, b.RT)
						if half {
							tape.SetComputeDtype(tensor.BFloat16)
						}
						optim.Minimize(tape, tape.Mean(tape.Square(model.Forward(tape, tape.Input(x)))), opt)
						require.NoError(t, tape.Close())
					})
					require.Equal(t, held, b.Cache.MemoryAllocated())
				}
				own := held - before
				require.NoError(t, opt.Close())
				require.NoError(t, in.Close())
				return own + infer, own + train
			}
			infer, train := run(func(autograd.Parameters) {})
			offInfer, offTrain := run(func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
			t.Logf("bfloat16 %v, ahead %d: inference %d, was %d; training %d, was %d; a layer %d", half, ahead, offInfer, infer, offTrain, train, wideLayer)
			copies := map[bool]int64{false: 0, true: 1}[half] // of one layer and the one before, halves
			if cisterntest.Named() == "" {
				require.InDelta(t, (here+copies)*wideLayer, offInfer, wideValues)
			} else { // products have a workspace on a GPU
				require.GreaterOrEqual(t, infer-offInfer, (layers-here)*wideLayer-wideValues)
			}
			require.InDelta(t, (layers-here)*wideLayer, train-offTrain, 2*wideValues)
		}
	}
}

// TestParametersLowerThePeakOfGradients: a backward pass without gradients of parameters holds the
// parameters of two layers on the device.
func TestParametersLowerThePeakOfGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const layers = 10
	o := b.Offloader(tensor.OffloadConfig{})
	in, model := wide(b, layers, func(ps autograd.Parameters) {
		ps.SetRequiresGrad(false)
		require.NoError(t, offload.Parameters(b.Ctx, ps, o))
	})
	x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
	for range 2 {
		rise := rise(b, func() {
			tape := autograd.NewTape(b.Ctx, b.RT)
			leaf := tape.Leaf(x)
			_, err := tape.Backward(tape.Mean(model.Forward(tape, leaf)))
			require.NoError(t, err)
			require.NotNil(t, leaf.Grad())
			require.NoError(t, tape.Close())
		})
		require.InDelta(t, 2*wideLayer, rise, (layers+2)*2*512, "two layers, and what activations take")
	}
	require.NoError(t, in.Close())
}

// TestParametersStepInPieces: a step holds two pieces on the device, one of which comes while the
// other is updated, with or without its state.
func TestParametersStepInPieces(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const layers, piece = 8, 2 * wideLayer
	for _, state := range []bool{false, true} {
		o := b.Offloader(tensor.OffloadConfig{})
		in, model := wide(b, layers, func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
		opt, err := tapetest.WithErr(optim.NewSGD(model.Parameters(), optim.SGDConfig{Momentum: 0.9}))
		require.NoError(t, err)
		if state {
			require.NoError(t, offload.State(b.Ctx, opt, o, piece))
		} else {
			require.NoError(t, opt.SetStage(b.Ctx, nil, piece))
		}
		require.NoError(t, opt.Prepare(b.Ctx))
		for _, p := range model.Parameters() {
			p.SetGrad(in.Tensor(make([]float64, wideWidth*wideWidth), wideWidth, wideWidth))
		}
		before := o.Stats()
		rise := rise(b, func() { require.NoError(t, opt.Step(b.Ctx)) })
		require.EqualValues(t, 2*piece, rise)
		s := o.Stats()
		fetched := map[bool]int64{false: layers, true: 2 * layers}[state]
		require.Equal(t, fetched, s.Fetched-before.Fetched)
		require.Equal(t, fetched-piece/wideLayer, s.Prefetched-before.Prefetched, "all but the first piece")
		require.Equal(t, before.Unchanged, s.Unchanged)
		for _, p := range model.Parameters() {
			require.True(t, p.Value().Offloaded())
			p.SetGrad(nil)
		}
		require.NoError(t, opt.Close())
		require.NoError(t, in.Close())
	}
}

// TestRoundedCopiesLeaveWithTheirParameters: after a forward pass in bfloat16 the device has the
// copy of one layer, although the backward pass needs the copies of all layers.
func TestRoundedCopiesLeaveWithTheirParameters(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{Ahead: -1})
	in, model := wide(b, 6, func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
	x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
	before := b.Cache.MemoryAllocated()
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.SetComputeDtype(tensor.BFloat16)
	loss := tape.Mean(model.Forward(tape, tape.Input(x)))
	require.InDelta(t, wideLayer/2, b.Cache.MemoryAllocated()-before, 2*wideValues)
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	require.NoError(t, in.Close())
}
