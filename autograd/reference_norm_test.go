package autograd_test

import (
	"encoding/json"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	referenceOps["batch_norm"] = referenceBatchNorm
	referenceOps["layer_norm"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.LayerNorm(r.in("input"), r.optional("weight"), r.optional("bias"), r.float("eps", 0), r.ints("normalized_shape")...)
	}
	referenceOps["group_norm"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.GroupNorm(r.in("input"), r.optional("weight"), r.optional("bias"), r.int("num_groups", 0), r.float("eps", 0))
	}
	referenceOps["rms_norm"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.RMSNorm(r.in("input"), r.optional("weight"), r.float("eps", 0), r.ints("normalized_shape")...)
	}
}

// referenceBatchNorm compares the running statistics, too.
func referenceBatchNorm(r *referenceRun) *autograd.Variable {
	stat := func(name string, to any) { require.NoError(r.t, json.Unmarshal(r.Running[name], to), name) }
	var mean, variance, meanAfter, varAfter []refNumber
	stat("mean_before", &mean)
	stat("var_before", &variance)
	stat("mean_after", &meanAfter)
	stat("var_after", &varAfter)
	c := tensor.BatchNormConfig{Training: r.bool("training", false), Mean: r.upload(mean, len(mean)), Var: r.upload(variance, len(variance))}
	stat("momentum", &c.Momentum)
	stat("eps", &c.Eps)
	r.t.Cleanup(func() {
		require.NoError(r.t, c.Mean.Release())
		require.NoError(r.t, c.Var.Release())
	})
	y := r.tape.BatchNorm(r.in("input"), r.optional("weight"), r.optional("bias"), c)
	require.NoError(r.t, r.tape.Err())
	r.same("the running mean", c.Mean, meanAfter)
	r.same("the running variance", c.Var, varAfter)
	return y
}
