package optim_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// A loop with gradients of two parts of a batch, a bound on their norm, and a schedule.
func ExampleClipGradNorm() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	model := nn.Sequential{in.Linear(2, 16), nn.Tanh{}, in.Linear(16, 2)}
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 2, 2, 2) // two parts of two rows
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	params := model.Parameters()
	adam := nn.Own(in, optim.NewAdamW(params, optim.AdamConfig{LR: new(0.05)}))
	schedule, err := optim.NewScheduler(adam, optim.CosineAnnealingLR{TMax: 200})
	check(errors.Join(err, in.Err()))
	tape := autograd.NewTape(ctx, env)
	var last float64
	for range 200 {
		last = 0
		for part := range 2 {
			rows := tape.Reshape(tape.Narrow(tape.Input(x), 0, part, 1), 2, 2)
			labels, err := env.Narrow(ctx, y, 0, 2*part, 2)
			check(err)
			loss := tape.MulScalar(tape.CrossEntropy(model.Forward(tape, rows), labels), 0.5)
			last += loss.Item()
			_, err = tape.Backward(loss)
			check(errors.Join(err, labels.Release(), tape.Reset(ctx)))
		}
		check(errors.Join(optim.ClipGradNorm(ctx, params, 1), adam.Step(ctx), schedule.Step(), adam.ZeroGrad(ctx)))
	}
	check(errors.Join(tape.Close(), in.Close(), env.Close()))
	fmt.Println("the loss is below 0.05:", last < 0.05)
	// Output: the loss is below 0.05: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
