package autograd_test

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	for name, f := range map[string]func(*autograd.Tape, *autograd.Variable) *autograd.Variable{
		"sign": (*autograd.Tape).Sign, "floor": (*autograd.Tape).Floor, "ceil": (*autograd.Tape).Ceil, "round": (*autograd.Tape).Round,
		"log1p": (*autograd.Tape).Log1p, "expm1": (*autograd.Tape).Expm1,
	} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable { return f(r.tape, r.in("input")) }
	}
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable, diagonal int) *autograd.Variable{"tril": (*autograd.Tape).Tril, "triu": (*autograd.Tape).Triu} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable {
			return f(r.tape, r.in("input"), r.int("diagonal", 0))
		}
	}
	compares := map[string]func(t *autograd.Tape, a, b *autograd.Variable) *autograd.Variable{
		"eq": (*autograd.Tape).Equal, "ne": (*autograd.Tape).NotEqual, "lt": (*autograd.Tape).Less, "le": (*autograd.Tape).LessEqual,
		"gt": (*autograd.Tape).Greater, "ge": (*autograd.Tape).GreaterEqual,
	}
	referenceOps["compare"] = func(r *referenceRun) *autograd.Variable {
		a, b := r.in("input"), r.in("other")
		mask := compares[r.string("relation", "")](r.tape, a, b)
		require.False(r.t, mask.RequiresGrad())
		if !r.bool("mask", false) {
			return r.tape.Where(mask, a, r.tape.MulScalar(b, 2))
		}
		zero := r.upload([]refNumber{0})
		defer func() { require.NoError(r.t, zero.Release()) }()
		return r.tape.MaskedFill(r.tape.Input(zero), mask, 1)
	}
	referenceOps["masked_fill"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.MaskedFill(r.in("input"), r.in("mask"), r.float("value", math.Inf(-1)))
	}
	referenceOps["pow"] = func(r *referenceRun) *autograd.Variable { return r.tape.Pow(r.in("input"), r.in("exponent")) }
	referenceOps["kl_div"] = func(r *referenceRun) *autograd.Variable {
		options := r.lossOptions()
		if r.string("reduction", "") == "batchmean" {
			options = append(options, tensor.ReduceBatchMean)
		}
		if r.bool("log_target", false) {
			options = append(options, tensor.LogTarget)
		}
		return r.tape.KLDivLoss(r.in("input"), r.in("target"), options...)
	}
	referenceOps["nll_loss"] = func(r *referenceRun) *autograd.Variable {
		labels := r.in("target")
		if len(r.Inputs["target"].Shape) == 0 { // Upload makes a vector of it
			labels = r.tape.Reshape(labels)
		}
		return r.tape.NLLLoss(r.in("input"), labels.Value(), r.lossOptions()...)
	}
}
