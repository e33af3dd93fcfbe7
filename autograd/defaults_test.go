package autograd_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// reducedBy returns "mean" if the loss is that number.
func reducedBy(b *tapetest.Bench, f func(t *autograd.Tape) *autograd.Variable, mean float64) string {
	tape := autograd.NoGrad(b.Ctx, b.RT)
	got := f(tape).Item()
	require.NoError(b.T, tape.Close())
	if math.Abs(got-mean) < 1e-12 {
		return "mean"
	}
	return fmt.Sprint(got)
}

// TestDefaultsOfLossesArePyTorchs: options that a program leaves out have the defaults that PyTorch
// 2.11 documents.
func TestDefaultsOfLossesArePyTorchs(t *testing.T) {
	tapetest.RequireDefaults(t, "", []tapetest.Default{
		{Names: "AttentionConfig", Python: "attn_mask=None, dropout_p=0, is_causal=False, scale=None, enable_gqa=False", Got: func(*tapetest.Bench, *nn.Initializer) string {
			var c autograd.AttentionConfig // a Scale of 0 is 1/√E
			return tapetest.Signature("attn_mask", map[bool]string{true: "None"}[c.Mask == nil], "dropout_p", c.Dropout, "is_causal", c.Causal, "scale", map[float64]string{0: "None"}[c.Scale], "enable_gqa", c.GQA)
		}},
		{Names: "Tape.MSELoss", Python: "reduction=mean", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.MSELoss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}))
			}, 2))
		}},
		{Names: "Tape.L1Loss", Python: "reduction=mean", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.L1Loss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}))
			}, 1))
		}},
		{Names: "Tape.HuberLoss", Python: "reduction=mean", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			return tapetest.Signature("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.HuberLoss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}), 1)
			}, 0.75))
		}},
		{Names: "Tape.BCEWithLogits", Python: "weight=None, reduction=mean, pos_weight=None", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.BCEWithLogits(autograd.Upload(t, []float64{0, 0}), autograd.Upload(t, []float64{0, 1}))
			}, math.Ln2)
			return tapetest.Signature("weight", "None", "reduction", got, "pos_weight", "None")
		}},
		{Names: "Tape.KLDivLoss", Python: "reduction=mean, log_target=False", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.KLDivLoss(autograd.Upload(t, []float64{-1, -2}), autograd.Upload(t, []float64{1, 1}))
			}, 1.5)
			return tapetest.Signature("reduction", got, "log_target", got != "mean")
		}},
		{Names: "Tape.NLLLoss", Python: "weight=None, ignore_index=-100, reduction=mean", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			labels := tapetest.Upload(b, []int32{0, -100, 1})
			got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.NLLLoss(autograd.Upload(t, []float64{-3, 0, 5, 5, 3, -1}, 3, 2), labels)
			}, 2)
			return tapetest.Signature("weight", "None", "ignore_index", -100, "reduction", got)
		}},
		{Names: "Tape.CrossEntropy", Python: "weight=None, ignore_index=-100, reduction=mean, label_smoothing=0", Got: func(b *tapetest.Bench, _ *nn.Initializer) string {
			labels := tapetest.Upload(b, []int32{0, -100, 0})
			got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
				return t.CrossEntropy(autograd.Upload(t, []float64{3, 0, 5, 5, 3, 0}, 3, 2), labels)
			}, math.Log1p(math.Exp(-3)))
			return tapetest.Signature("weight", "None", "ignore_index", -100, "reduction", got, "label_smoothing", 0)
		}},
	})
}
