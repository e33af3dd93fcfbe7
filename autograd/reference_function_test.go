package autograd_test

import (
	"math"

	"github.com/cistern-ml/cistern/autograd"
)

func init() {
	for name, f := range map[string]func(*autograd.Tape, *autograd.Variable) *autograd.Variable{
		"abs": (*autograd.Tape).Abs, "sin": (*autograd.Tape).Sin, "cos": (*autograd.Tape).Cos, "erf": (*autograd.Tape).Erf, "rsqrt": (*autograd.Tape).Rsqrt, "silu": (*autograd.Tape).SiLU,
		"logsigmoid": (*autograd.Tape).LogSigmoid,
	} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable { return f(r.tape, r.in("input")) }
	}
	for name, f := range map[string]func(t *autograd.Tape, a, b *autograd.Variable) *autograd.Variable{"maximum": (*autograd.Tape).Maximum, "minimum": (*autograd.Tape).Minimum} {
		referenceOps[name] = func(r *referenceRun) *autograd.Variable { return f(r.tape, r.in("input"), r.in("other")) }
	}
	referenceOps["gelu"] = func(r *referenceRun) *autograd.Variable {
		if r.string("approximate", "none") == "tanh" {
			return r.tape.GELUTanh(r.in("input"))
		}
		return r.tape.GELU(r.in("input"))
	}
	referenceOps["elu"] = func(r *referenceRun) *autograd.Variable { return r.tape.ELU(r.in("input"), r.float("alpha", 1)) }
	referenceOps["softplus"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Softplus(r.in("input"), r.float("beta", 1), r.float("threshold", 20))
	}
	referenceOps["leaky_relu"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.LeakyReLU(r.in("input"), r.float("negative_slope", 0.01))
	}
	referenceOps["hardtanh"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Hardtanh(r.in("input"), r.float("min_val", -1), r.float("max_val", 1))
	}
	referenceOps["clamp"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Clamp(r.in("input"), r.float("min", math.Inf(-1)), r.float("max", math.Inf(1)))
	}
	referenceOps["where"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Where(r.in("condition"), r.in("input"), r.in("other"))
	}
}
