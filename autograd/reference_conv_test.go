package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	for op, f := range map[string]func(*Tape, *Variable, *Variable, *Variable, tensor.ConvConfig) *Variable{
		"conv1d": (*Tape).Conv1d, "conv2d": (*Tape).Conv2d, "conv_transpose1d": (*Tape).ConvTranspose1d, "conv_transpose2d": (*Tape).ConvTranspose2d,
	} {
		referenceOps[op] = func(r *referenceRun) *Variable {
			c := tensor.ConvConfig{Stride: r.ints("stride"), Padding: r.ints("padding"), Dilation: r.ints("dilation"),
				OutputPadding: r.ints("output_padding"), Groups: r.int("groups", 1)}
			c.Same = r.string("padding", "") == "same"
			return f(r.tape, r.in("input"), r.in("weight"), r.optional("bias"), c)
		}
	}
}
