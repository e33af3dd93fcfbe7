package autograd

func init() {
	reduction := func(dropping, keeping func(t *Tape, x *Variable, axes ...int) *Variable) func(r *referenceRun) *Variable {
		return func(r *referenceRun) *Variable {
			if r.bool("keepdim", false) {
				return keeping(r.tape, r.in("input"), r.ints("dim")...)
			}
			return dropping(r.tape, r.in("input"), r.ints("dim")...)
		}
	}
	referenceOps["sum"] = reduction((*Tape).Sum, (*Tape).SumKeepDim)
	referenceOps["mean"] = reduction((*Tape).Mean, (*Tape).MeanKeepDim)
	referenceOps["amax"] = reduction((*Tape).Amax, (*Tape).AmaxKeepDim)
	referenceOps["logsumexp"] = reduction((*Tape).LogSumExp, (*Tape).LogSumExpKeepDim)
	referenceOps["var"] = func(r *referenceRun) *Variable {
		correction := r.float("correction", 1)
		if !r.bool("unbiased", true) {
			correction = 0
		}
		return reduction(func(t *Tape, x *Variable, axes ...int) *Variable { return t.Var(x, correction, axes...) },
			func(t *Tape, x *Variable, axes ...int) *Variable { return t.VarKeepDim(x, correction, axes...) })(r)
	}
	referenceOps["max"] = func(r *referenceRun) *Variable { return r.tape.Max(r.in("input")) }
}
