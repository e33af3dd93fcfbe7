package autograd

import "github.com/cistern-ml/cistern/tensor"

func init() {
	for name, f := range map[string]func(t *Tape, x *Variable, axis ...int) *Variable{"softmax": (*Tape).Softmax, "log_softmax": (*Tape).LogSoftmax} {
		referenceOps[name] = func(r *referenceRun) *Variable { return f(r.tape, r.in("input"), r.int("dim", -1)) }
	}
	referenceOps["cross_entropy"] = func(r *referenceRun) *Variable {
		return r.tape.CrossEntropy(r.in("input"), r.in("target").Value(), r.lossOptions()...)
	}
	for name, f := range map[string]func(t *Tape, x, target *Variable, options ...tensor.LossOption) *Variable{
		"mse_loss": (*Tape).MSELoss, "l1_loss": (*Tape).L1Loss, "binary_cross_entropy_with_logits": (*Tape).BCEWithLogits,
	} {
		referenceOps[name] = func(r *referenceRun) *Variable { return f(r.tape, r.in("input"), r.in("target"), r.lossOptions()...) }
	}
	referenceOps["huber_loss"] = func(r *referenceRun) *Variable {
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
