package optim_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// A loop with gradients of two parts of a batch, a bound on their norm, and a schedule.
func ExampleLoop() {
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(context.Background(), env, nn.Seed(1))
	model := nn.Sequential{in.Linear(2, 16), nn.Tanh{}, in.Linear(16, 2)}
	// Two parts of two rows.
	x := []*tensor.Tensor{in.Tensor([]float64{0, 0, 0, 1}, 2, 2), in.Tensor([]float64{1, 0, 1, 1}, 2, 2)}
	y := []*tensor.Tensor{in.Labels([]int{0, 1}, 2), in.Labels([]int{1, 0}, 2)}
	adam := nn.Own(in, optim.NewAdamW(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	schedule, err := optim.NewScheduler(adam, optim.CosineAnnealingLR{TMax: 200})
	check(err)
	loop := optim.Loop{Optimizer: adam, Accumulate: 2, ClipNorm: 1, Scheduler: schedule}
	for i, tape := range in.Steps(400) {
		loop.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x[i%2])), y[i%2]))
	}
	for i, tape := range in.Steps(2) {
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x[i])), y[i])
		fmt.Println("the loss is below 0.05:", loss.Item() < 0.05)
	}
	check(errors.Join(in.Close(), env.Close()))
	// Output:
	// the loss is below 0.05: true
	// the loss is below 0.05: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
