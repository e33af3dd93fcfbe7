package autograd_test

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	type (
		tape     = autograd.Tape
		variable = autograd.Variable
	)
	reduction := func(dropping, keeping func(t *tape, x *variable, axes ...int) *variable) func(r *referenceRun) *variable {
		return func(r *referenceRun) *variable {
			if r.bool("keepdim", false) {
				return keeping(r.tape, r.in("input"), r.ints("dim")...)
			}
			return dropping(r.tape, r.in("input"), r.ints("dim")...)
		}
	}
	referenceOps["amin"] = reduction((*tape).Amin, (*tape).AminKeepDim)
	referenceOps["min"] = func(r *referenceRun) *variable { return r.tape.Min(r.in("input")) }
	referenceOps["vector_norm"] = func(r *referenceRun) *variable {
		p := r.float("p", 2)
		if p > 2 { // JSON has no infinity
			p = math.Inf(1)
		}
		return reduction(func(t *tape, x *variable, axes ...int) *variable { return t.VectorNorm(x, p, axes...) },
			func(t *tape, x *variable, axes ...int) *variable { return t.VectorNormKeepDim(x, p, axes...) })(r)
	}
	referenceOps["cumsum"] = func(r *referenceRun) *variable { return r.tape.CumSum(r.in("input"), r.int("dim", 0)) }
	referenceOps["one_hot"] = func(r *referenceRun) *variable { return r.tape.OneHot(r.in("input"), r.int("classes", 0), r.dtype) }
	referenceOps["flip"] = func(r *referenceRun) *variable { return r.tape.Flip(r.in("input"), r.ints("dims")...) }
	referenceOps["roll"] = func(r *referenceRun) *variable { return r.tape.Roll(r.in("input"), r.ints("shifts"), r.ints("dims")) }
	referenceOps["scatter"] = func(r *referenceRun) *variable {
		return r.tape.Scatter(r.in("input"), r.int("dim", 0), r.in("index"), r.in("src"))
	}
	referenceOps["scatter_add"] = func(r *referenceRun) *variable {
		return r.tape.ScatterAdd(r.in("input"), r.int("dim", 0), r.in("index"), r.in("src"))
	}
	sorted := func(r *referenceRun) (values, index *variable) {
		return r.tape.Sort(r.in("input"), r.int("dim", 0), r.bool("descending", false))
	}
	topK := func(r *referenceRun) (values, index *variable) {
		return r.tape.TopK(r.in("input"), r.int("k", 0), r.int("dim", 0), r.bool("largest", true))
	}
	for name, f := range map[string]func(r *referenceRun) (values, index *variable){"sort": sorted, "topk": topK} {
		referenceOps[name] = func(r *referenceRun) *variable {
			values, _ := f(r)
			return values
		}
		referenceOps[name+"_index"] = func(r *referenceRun) *variable {
			_, index := f(r)
			r.places(index)
			return nil
		}
	}
	referenceOps["argmax"] = func(r *referenceRun) *variable {
		r.places(r.tape.ArgMax(r.in("input"), r.int("dim", 0)))
		return nil
	}
	referenceOps["argmin"] = func(r *referenceRun) *variable {
		r.places(r.tape.ArgMin(r.in("input"), r.int("dim", 0)))
		return nil
	}
}

// places compares places, which have no gradient.
func (r *referenceRun) places(got *autograd.Variable) {
	r.t.Helper()
	require.NoError(r.t, r.tape.Err())
	require.False(r.t, got.RequiresGrad())
	list, err := tensor.ToSlice[int32](r.b.Ctx, got.Value(), nil)
	require.NoError(r.t, err)
	require.Equal(r.t, convert[int32](r.output()), append([]int32{}, list...))
}
