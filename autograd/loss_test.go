package autograd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestLossesKeepTheirWeights until Backward: the program may release its own at once.
func TestLossesKeepTheirWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	logits, target, labels := tapetest.Upload(b, []float64{1, -2, 0.5, 3}, 2, 2), tapetest.Upload(b, []float64{1, 0, 0, 1}, 2, 2), tapetest.Upload(b, []int64{1, 0})
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable, w *tensor.Tensor) *autograd.Variable{
		"CrossEntropy": func(t *autograd.Tape, x *autograd.Variable, w *tensor.Tensor) *autograd.Variable {
			return t.CrossEntropy(x, labels, tensor.Weight(w))
		},
		"NLLLoss": func(t *autograd.Tape, x *autograd.Variable, w *tensor.Tensor) *autograd.Variable {
			return t.NLLLoss(x, labels, tensor.Weight(w))
		},
		"BCEWithLogits": func(t *autograd.Tape, x *autograd.Variable, w *tensor.Tensor) *autograd.Variable {
			return t.BCEWithLogits(x, t.Input(target), tensor.PosWeight(w), tensor.Weight(w))
		},
		"of probabilities": func(t *autograd.Tape, x *autograd.Variable, w *tensor.Tensor) *autograd.Variable {
			return t.CrossEntropy(x, target, tensor.Weight(w))
		},
	} {
		var want []float64
		for _, early := range []bool{false, true} {
			w, err := tensor.FromSlice(b.Ctx, b.RT, []float64{3, 0.5})
			require.NoError(t, err)
			tape := autograd.NewTape(b.Ctx, b.RT)
			x := tape.Leaf(logits)
			loss := f(tape, x, w)
			if early {
				require.NoError(t, w.Release())
				overwrite, err := b.RT.Full(b.Ctx, 77, tensor.Float64, 2)
				require.NoError(t, err)
				defer func() { require.NoError(t, overwrite.Release()) }()
			}
			_, err = tape.Backward(loss)
			require.NoError(t, err, name)
			got := tapetest.Read[float64](b, x.Grad())
			if want == nil {
				want = got
				require.NoError(t, w.Release())
			}
			assert.Equal(t, want, got, name)
			require.NoError(t, tape.Close())
		}
	}
}

// TestIgnoredLabels don't count: those of -100 unless another is named.
func TestIgnoredLabels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	logits := []float64{1, 2, 3, 4, 5, 9}
	alone := b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return tape.CrossEntropy(tape.Reshape(vs[0], 1, 2), tapetest.Upload(b, []int32{1}))
	}, logits[4:])[0]
	ignored := b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return tape.CrossEntropy(tape.Reshape(vs[0], 3, 2), tapetest.Upload(b, []int32{-100, -100, 1}))
	}, logits)[0]
	assert.Equal(t, append([]float64{0, 0, 0, 0}, alone...), ignored)
	ignored = b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return tape.CrossEntropy(tape.Reshape(vs[0], 3, 2), tapetest.Upload(b, []int64{0, 0, 1}), tensor.IgnoreIndex(0))
	}, logits)[0]
	assert.Equal(t, append([]float64{0, 0, 0, 0}, alone...), ignored)
	none := b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		loss := tape.CrossEntropy(tape.Reshape(vs[0], 3, 2), tapetest.Upload(b, []int32{-100, -100, -100}))
		assert.True(t, math.IsNaN(loss.Item()), "the mean of nothing")
		return loss
	}, logits)[0]
	assert.Equal(t, make([]float64, 6), none)
}

// TestCrossEntropyOfProbabilities is that of labels for probabilities of 1.
func TestCrossEntropyOfProbabilities(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	logits := []float64{1, 2, 3, 4, 5, 9, -1, 0, 2, 1, 1, 1}
	labels, weights := tapetest.Upload(b, []int64{1, 0, 2, 1}, 2, 2), tapetest.Upload(b, []float64{1, 1, 1})
	onehot := tapetest.Upload(b, []float64{0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0}, 2, 3, 2)
	for _, reduce := range []tensor.LossOption{tensor.ReduceMean, tensor.ReduceSum, tensor.ReduceNone} {
		var got [2][]float64
		for i, target := range []*tensor.Tensor{labels, onehot} {
			got[i] = b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
				return tape.CrossEntropy(tape.Reshape(vs[0], 2, 3, 2), target, reduce, tensor.LabelSmoothing(0.25), tensor.Weight(weights))
			}, logits)[0]
		}
		assert.InDeltaSlice(t, got[0], got[1], 1e-15)
	}
}

// TestLossesBroadcast their operands, and sum the gradients.
func TestLossesBroadcast(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	got := b.Grads(func(tape *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return tape.MSELoss(tape.Reshape(vs[0], 2, 1), vs[1], tensor.ReduceSum)
	}, []float64{1, 2}, []float64{3, 5, 6})
	assert.Equal(t, [][]float64{{2 * (-2 - 4 - 5), 2 * (-1 - 3 - 4)}, {2 * (2 + 1), 2 * (4 + 3), 2 * (5 + 4)}}, got)
}

// TestLossesRefuse options that they don't have, and operands that don't fit.
func TestLossesRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, w, labels := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2), tapetest.Upload(b, []float64{1, 2, 3}), tapetest.Upload(b, []int32{0, 1})
	narrow, one := tapetest.Upload(b, []float32{1, 2}, 2), tapetest.Upload(b, []float64{3})
	for name, c := range map[string]struct {
		f    func(t *autograd.Tape, x *autograd.Variable)
		want error
	}{
		"smoothing of a square":   {func(t *autograd.Tape, x *autograd.Variable) { t.MSELoss(x, x, tensor.LabelSmoothing(0.1)) }, tensor.ErrInvalid},
		"too much smoothing":      {func(t *autograd.Tape, x *autograd.Variable) { t.CrossEntropy(x, labels, tensor.LabelSmoothing(1.5)) }, tensor.ErrInvalid},
		"positive weights":        {func(t *autograd.Tape, x *autograd.Variable) { t.CrossEntropy(x, labels, tensor.PosWeight(w)) }, tensor.ErrInvalid},
		"of probabilities":        {func(t *autograd.Tape, x *autograd.Variable) { t.CrossEntropy(x, x.Value(), tensor.PosWeight(w)) }, tensor.ErrInvalid},
		"one weight for all":      {func(t *autograd.Tape, x *autograd.Variable) { t.CrossEntropy(x, x.Value(), tensor.Weight(one)) }, tensor.ErrShape},
		"too many weights":        {func(t *autograd.Tape, x *autograd.Variable) { t.CrossEntropy(x, labels, tensor.Weight(w)) }, tensor.ErrShape},
		"weights of another type": {func(t *autograd.Tape, x *autograd.Variable) { t.BCEWithLogits(x, x, tensor.Weight(narrow)) }, tensor.ErrDtype},
		"shapes":                  {func(t *autograd.Tape, x *autograd.Variable) { t.L1Loss(x, t.Input(w)) }, tensor.ErrShape},
		"a logit for each":        {func(t *autograd.Tape, x *autograd.Variable) { t.BCEWithLogits(x, t.Sum(x, 0)) }, tensor.ErrShape},
		"a delta of 0":            {func(t *autograd.Tape, x *autograd.Variable) { t.HuberLoss(x, x, 0) }, tensor.ErrInvalid},
		"batches of squares":      {func(t *autograd.Tape, x *autograd.Variable) { t.MSELoss(x, x, tensor.ReduceBatchMean) }, tensor.ErrInvalid},
		"logarithms of squares":   {func(t *autograd.Tape, x *autograd.Variable) { t.MSELoss(x, x, tensor.LogTarget) }, tensor.ErrInvalid},
		"a batch of a scalar":     {func(t *autograd.Tape, x *autograd.Variable) { s := t.Sum(x); t.KLDivLoss(s, s, tensor.ReduceBatchMean) }, tensor.ErrShape},
		"smoothed likelihood":     {func(t *autograd.Tape, x *autograd.Variable) { t.NLLLoss(x, labels, tensor.LabelSmoothing(0.1)) }, tensor.ErrInvalid},
		"a likelihood of nil":     {func(t *autograd.Tape, x *autograd.Variable) { t.NLLLoss(x, nil) }, tensor.ErrInvalid},
		"unlike dtypes":           {func(t *autograd.Tape, x *autograd.Variable) { t.Less(x, t.Input(narrow)) }, tensor.ErrDtype},
		"a filled number":         {func(t *autograd.Tape, x *autograd.Variable) { t.MaskedFill(x, x, 1) }, tensor.ErrDtype},
		"a triangle of a vector":  {func(t *autograd.Tape, x *autograd.Variable) { t.Triu(t.Sum(x, 0), 0) }, tensor.ErrShape},
		"two axes":                {func(t *autograd.Tape, x *autograd.Variable) { t.Softmax(x, 0, 1) }, tensor.ErrInvalid},
		"bounds":                  {func(t *autograd.Tape, x *autograd.Variable) { t.Hardtanh(x, 1, 0) }, tensor.ErrInvalid},
		"a NaN":                   {func(t *autograd.Tape, x *autograd.Variable) { t.Clamp(x, math.NaN(), 0) }, tensor.ErrInvalid},
		"a mask of numbers":       {func(t *autograd.Tape, x *autograd.Variable) { t.Where(x, x, x) }, tensor.ErrDtype},
		"the greatest of nothing": {func(t *autograd.Tape, x *autograd.Variable) { t.Amax(t.Narrow(x, 0, 0, 0), 0) }, tensor.ErrShape},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.f(tape, tape.Leaf(x))
		require.ErrorIs(t, tape.Err(), c.want, name)
		require.Error(t, tape.Close())
		assert.Zero(t, b.Live()-5, "%s left memory behind", name)
	}
}
