package offload_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// The first two of three blocks keep their activations in pinned memory until the backward pass.
func ExampleLayer() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	block := func() nn.Layer {
		return nn.Sequential{in.Linear(64, 256), nn.ReLU{}, in.Linear(256, 64)}
	}
	model := nn.Sequential{offload.Layer(block(), off), offload.Layer(block(), off), block()}
	sgd := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.1)}))
	x := in.Tensor(make([]float64, 1000*64), 1000, 64)
	for _, tape := range in.Steps(3) {
		y := model.Forward(tape, tape.Input(x))
		loss := tape.Mean(tape.Square(y))
		y.Release()
		optim.Minimize(tape, loss, sgd)
	}
	check(errors.Join(in.Close(), off.Close(), env.Close()))
	s := off.Stats()
	fmt.Println("values a step:", s.Offloaded.Peak, "of", s.OffloadedBytes.Peak, "bytes; brought back:", s.Fetched)
	// Output: values a step: 3 of 2304000 bytes; brought back: 9
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
