package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	for op, f := range map[string]func(*autograd.Tape, *autograd.Variable, *autograd.Variable, *autograd.Variable, tensor.ConvConfig) *autograd.Variable{
		"conv1d": (*autograd.Tape).Conv1d, "conv2d": (*autograd.Tape).Conv2d, "conv_transpose1d": (*autograd.Tape).ConvTranspose1d, "conv_transpose2d": (*autograd.Tape).ConvTranspose2d,
	} {
		referenceOps[op] = func(r *referenceRun) *autograd.Variable {
			c := tensor.ConvConfig{Stride: r.ints("stride"), Padding: r.ints("padding"), Dilation: r.ints("dilation"),
				OutputPadding: r.ints("output_padding"), Groups: r.int("groups", 1)}
			c.Same = r.string("padding", "") == "same"
			return f(r.tape, r.in("input"), r.in("weight"), r.optional("bias"), c)
		}
	}
}
