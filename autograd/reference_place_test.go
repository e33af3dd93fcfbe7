package autograd_test

import "github.com/cistern-ml/cistern/autograd"

func init() {
	referenceOps["permute"] = func(r *referenceRun) *autograd.Variable { return r.tape.Permute(r.in("input"), r.ints("dims")...) }
	referenceOps["narrow"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Narrow(r.in("input"), r.int("dim", 0), r.int("start", 0), r.int("length", 0))
	}
	referenceOps["cat"] = func(r *referenceRun) *autograd.Variable { return r.tape.Cat(r.int("dim", 0), r.in("a"), r.in("b")) }
	referenceOps["stack"] = func(r *referenceRun) *autograd.Variable { return r.tape.Stack(r.int("dim", 0), r.in("a"), r.in("b")) }
	referenceOps["pad"] = func(r *referenceRun) *autograd.Variable {
		x, pairs := r.in("input"), r.ints("pad")
		before, after := make([]int, len(x.Shape())), make([]int, len(x.Shape()))
		for i := 0; i < len(pairs); i += 2 {
			d := len(before) - 1 - i/2
			before[d], after[d] = pairs[i], pairs[i+1]
		}
		return r.tape.Pad(x, r.float("value", 0), before, after)
	}
}
