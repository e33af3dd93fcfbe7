package nn_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// A chain of layers. One takes a mask, and one is a function.
func ExampleWith() {
	env, err := tensor.Open("host")
	in := nn.Init(context.Background(), env, nn.Seed(1))
	var mask *autograd.Variable // of the step
	model := nn.Sequential{
		nn.With(in.MultiHeadAttention(8, 2), func(m *nn.MultiHeadAttention, t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return m.Attend(t, x, x, x, autograd.AttentionConfig{Mask: mask})
		}),
		nn.Func(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mean(x, 0) }),
		in.Linear(8, 3),
	}
	for _, tape := range in.Steps(1) {
		x := autograd.Upload(tape, make([]float32, 4*2*8), 4, 2, 8) // (steps, batch, n)
		mask = autograd.Upload(tape, []uint8{1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1}, 4, 4)
		fmt.Println(model.Forward(tape, x).Shape())
	}
	for _, p := range model.Parameters() {
		fmt.Println(p.Name)
	}
	if err := errors.Join(err, in.Close(), env.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// (2, 3)
	// 0.in_proj_weight
	// 0.in_proj_bias
	// 0.out_proj.weight
	// 0.out_proj.bias
	// 2.weight
	// 2.bias
}
