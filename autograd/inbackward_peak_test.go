package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestInBackwardPeak: the peak of a transformer with checkpoints falls by the gradients, less a
// piece, the largest one, and that of the tied embedding, which lives from the first backward step
// to the last. The peak is in the second run of the first block, with its activations and their
// gradients. With Minimize all other gradients exist by then.
func TestInBackwardPeak(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	b.NeedsHost("the blocks of the product's workspace are others elsewhere")
	const piece = 100 << 10
	size := gptSize{layers: 8, heads: 4, width: 64, steps: 4, rows: 1, vocabulary: 60}
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	x := in.Uniform(-1, 1, size.rows, size.steps, size.width).Value()
	m := &gptBlock{*newRunBlock(in, size.width), size.heads}
	var block int64 // memory of one block after its forward pass without a checkpoint
	for _, tape := range in.Steps(1) {
		v, before := tape.Leaf(x), b.Bytes()
		m.Forward(tape, v)
		block = b.Bytes() - before
	}
	require.NoError(t, in.Close())

	var gradients, tied, largest int64
	peak := func(minimize func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer)) (peak int64) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		model := size.model(in, gptRun{checkpointed: true}, nil)
		ps := nn.ParametersOf(model)
		opt := nn.Own(in, optim.NewAdamW(ps, optim.AdamConfig{}))
		require.NoError(t, opt.Prepare(b.Ctx))
		gradients, tied, largest = ps.Bytes(), model.Tok.Weight.Value().Bytes(), 0
		for _, p := range ps {
			largest = max(largest, p.Value().Bytes())
		}
		x, y := size.batch(b)
		for step, tape := range in.Steps(3) {
			logits := model.Forward(tape, tape.Input(x))
			loss := tape.CrossEntropy(tape.Reshape(logits, -1, size.vocabulary), y)
			logits.Release()
			b.Cache.ResetPeakStats()
			minimize(tape, loss, opt)
			if step == 1 {
				peak = b.Cache.MaxMemoryAllocated()
			}
		}
		require.NoError(t, in.Close())
		return peak
	}
	late := peak(func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.Minimize(tape, loss, opt)
	})
	early := peak(func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.InBackward(tape, loss, opt, piece)
	})
	t.Logf("%d bytes at the peak, and %d in the backward pass, of %d of gradients; a block's activations have %d", late, early, gradients, block)
	require.LessOrEqual(t, early, late-(gradients-tied-piece-largest)+2*block)
}
