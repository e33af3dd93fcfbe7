package autograd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// TestBFloat16DiffersAsPyTorchs trains a small GPT in bfloat16 on the batches, and from the
// weights, with which PyTorch has trained it in float32 and in autocast to bfloat16. The losses of
// 200 steps differ from those of float32 as much as PyTorch's own do.
func TestBFloat16DiffersAsPyTorchs(t *testing.T) {
	var f struct {
		Batches           [][][]int32
		Float32, Bfloat16 []float64
	}
	readReference(t, "gpt.bfloat16.json.gz", &f)
	require.Len(t, f.Batches, 200)
	b := tapetest.Open(t, 1<<30)
	in := nn.Init(b.Ctx, b.RT, nn.ComputeDtype(tensor.BFloat16))
	model := newRunGPT(in, shapesOf(t, "gpt"))
	require.NoError(t, in.Err())
	(&trainingRun{t: t, b: b, model: model}).load("gpt")
	opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(3e-3), WeightDecay: new(0.01)}))
	if testing.Short() || race.Enabled {
		f.Batches = f.Batches[:3]
	}
	ours, theirs := new(deviation), new(deviation)
	for i, tape := range in.Steps(len(f.Batches)) {
		var tokens, next []int32
		for _, row := range f.Batches[i] {
			tokens, next = append(tokens, row[:len(row)-1]...), append(next, row[1:]...)
		}
		y := tapetest.Upload(b, next, len(next))
		logits := model.Forward(tape, autograd.Upload(tape, tokens, len(f.Batches[i]), len(tokens)/len(f.Batches[i])))
		loss := tape.CrossEntropy(tape.Reshape(logits, -1, 65), y).Keep()
		optim.Minimize(tape, loss, opt)
		require.NoError(t, in.Err())
		ours.add(loss.Item(), f.Float32[i])
		theirs.add(f.Bfloat16[i], f.Float32[i])
		require.NoError(t, y.Release())
	}
	require.NoError(t, in.Close())
	t.Logf("of the losses of float32, from %.3f to %.3f: ours by %.5f, at most %.5f; PyTorch's by %.5f, at most %.5f", f.Float32[0], f.Float32[199],
		ours.mean(), ours.worst, theirs.mean(), theirs.worst)
	if theirs.steps < 200 {
		assert.Less(t, ours.worst, 0x1p-9)
		return
	}
	assert.LessOrEqual(t, ours.worst, theirs.worst, "the worst step")
	assert.LessOrEqual(t, ours.mean(), 1.2*theirs.mean(), "the mean of all steps, in which chance has a part: 1.01 was measured")
}

// deviation is the relative difference of losses.
type deviation struct {
	steps      int
	sum, worst float64
}

func (d *deviation) add(got, want float64) {
	v := math.Abs(got-want) / want
	d.steps, d.sum, d.worst = d.steps+1, d.sum+v, max(d.worst, v)
}

func (d *deviation) mean() float64 { return d.sum / float64(d.steps) }
