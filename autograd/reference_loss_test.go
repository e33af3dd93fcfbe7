package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable, axis ...int) *autograd.Variable{"softmax": (*autograd.Tape).Softmax, "log_softmax": (*autograd.Tape).LogSoftmax} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable { return f(r.tape, r.in("input"), r.int("dim", -1)) }
	}
	referenceOps["cross_entropy"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.CrossEntropy(r.in("input"), r.in("target").Value(), r.lossOptions()...)
	}
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable, target autograd.Target, options ...tensor.LossOption) *autograd.Variable{
		"mse_loss": (*autograd.Tape).MSELoss, "l1_loss": (*autograd.Tape).L1Loss, "binary_cross_entropy_with_logits": (*autograd.Tape).BCEWithLogits,
	} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable {
			return f(r.tape, r.in("input"), r.in("target"), r.lossOptions()...)
		}
	}
	referenceOps["huber_loss"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.HuberLoss(r.in("input"), r.in("target"), r.float("delta", 1), r.lossOptions()...)
	}
}

func (r *referenceRun) lossOptions() (options []tensor.LossOption) {
	switch r.string("reduction", "mean") {
	case "sum":
		options = append(options, tensor.ReduceSum)
	case "none":
		options = append(options, tensor.ReduceNone)
	}
	if _, ok := r.Args["ignore_index"]; ok {
		options = append(options, tensor.IgnoreIndex(r.int("ignore_index", -100)))
	}
	if s := r.float("label_smoothing", 0); s != 0 {
		options = append(options, tensor.LabelSmoothing(s))
	}
	if w := r.optional("weight"); w != nil {
		options = append(options, tensor.Weight(w.Value()))
	}
	if w := r.optional("pos_weight"); w != nil {
		options = append(options, tensor.PosWeight(w.Value()))
	}
	return options
}
