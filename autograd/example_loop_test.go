package autograd_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// A loop with gradients of two parts of a batch, a bound on their norm, and a schedule.
func ExampleParameters_ClipGradNorm() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := autograd.Init(ctx, env, autograd.Seed(1))
	model := autograd.Sequential{in.Linear(2, 16), autograd.Tanh{}, in.Linear(16, 2)}
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 2, 2, 2) // two parts of two rows
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	params := model.Parameters()
	adam := autograd.Own(in, autograd.NewAdamW(params, autograd.AdamConfig{LR: new(0.05)}))
	schedule, err := autograd.NewScheduler(adam, autograd.CosineAnnealingLR{TMax: 200})
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
		norm, err := params.ClipGradNorm(ctx, 1)
		check(errors.Join(err, norm.Release(), adam.Step(ctx), schedule.Step(), adam.ZeroGrad(ctx)))
	}
	check(errors.Join(tape.Close(), in.Close(), env.Close()))
	fmt.Println("the loss is below 0.05:", last < 0.05)
	// Output: the loss is below 0.05: true
}
