package autograd_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// The first two of three blocks leave their activations in pinned memory until the backward pass.
func ExampleOffloaded() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
	check(err)
	in := autograd.Init(ctx, env, autograd.Seed(1))
	block := func() autograd.Layer {
		return autograd.Sequential{in.Linear(64, 256), autograd.ReLU{}, in.Linear(256, 64)}
	}
	model := autograd.Sequential{autograd.Offloaded(block(), off), autograd.Offloaded(block(), off), block()}
	sgd := autograd.Own(in, autograd.NewSGD(model.Parameters(), autograd.SGDConfig{LR: new(0.1)}))
	x := in.Tensor(make([]float64, 1000*64), 1000, 64)
	for _, tape := range in.Steps(3) {
		y := model.Forward(tape, tape.Input(x))
		loss := tape.Mean(tape.Square(y))
		y.Release()
		tape.Minimize(loss, sgd)
	}
	check(errors.Join(in.Close(), off.Close(), env.Close()))
	s := off.Stats()
	fmt.Println("values a step:", s.Offloaded.Peak, "of", s.OffloadedBytes.Peak, "bytes; brought back:", s.Fetched)
	// Output: values a step: 3 of 2304000 bytes; brought back: 9
}
