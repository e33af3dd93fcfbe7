package autograd_test

import "github.com/cistern-ml/cistern/autograd"

func init() {
	reduction := func(dropping, keeping func(t *autograd.Tape, x *autograd.Variable, axes ...int) *autograd.Variable) func(r *referenceRun) *autograd.Variable {
		return func(r *referenceRun) *autograd.Variable {
			if r.bool("keepdim", false) {
				return keeping(r.tape, r.in("input"), r.ints("dim")...)
			}
			return dropping(r.tape, r.in("input"), r.ints("dim")...)
		}
	}
	referenceOps["sum"] = reduction((*autograd.Tape).Sum, (*autograd.Tape).SumKeepDim)
	referenceOps["mean"] = reduction((*autograd.Tape).Mean, (*autograd.Tape).MeanKeepDim)
	referenceOps["amax"] = reduction((*autograd.Tape).Amax, (*autograd.Tape).AmaxKeepDim)
	referenceOps["logsumexp"] = reduction((*autograd.Tape).LogSumExp, (*autograd.Tape).LogSumExpKeepDim)
	referenceOps["var"] = func(r *referenceRun) *autograd.Variable {
		correction := r.float("correction", 1)
		if !r.bool("unbiased", true) {
			correction = 0
		}
		return reduction(func(t *autograd.Tape, x *autograd.Variable, axes ...int) *autograd.Variable {
			return t.Var(x, correction, axes...)
		},
			func(t *autograd.Tape, x *autograd.Variable, axes ...int) *autograd.Variable {
				return t.VarKeepDim(x, correction, axes...)
			})(r)
	}
	referenceOps["max"] = func(r *referenceRun) *autograd.Variable { return r.tape.Max(r.in("input")) }
}
