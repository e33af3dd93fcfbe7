package nn_test

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

// A model learns exclusive or in bfloat16. Its parameters are float32, for the updates that
// bfloat16 would lose.
func ExampleComputeDtype() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1), nn.ComputeDtype(tensor.BFloat16))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	first, last := in.Linear(2, 16), in.Linear(16, 2)
	model := nn.Sequential{first, nn.ReLU{}, last}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	for step, tape := range in.Steps(100) {
		logits := model.Forward(tape, tape.Input(x))
		loss := tape.CrossEntropy(logits, y)
		if step == 0 {
			fmt.Println("logits", logits.Value().Dtype(), "loss", loss.Value().Dtype(), "parameter", last.Weight.Value().Dtype())
		}
		optim.Minimize(tape, loss, adam)
	}
	check(in.Err())

	tape := autograd.NoGrad(ctx, env) // in float32, the default
	best, err := env.ArgMax(ctx, model.Forward(tape, tape.Input(x)).Value())
	check(err)
	answers, err := tensor.ToSlice[int32](ctx, best, nil)
	check(errors.Join(err, best.Release(), tape.Close(), in.Close(), env.Close()))
	fmt.Println(answers)
	// Output:
	// logits bfloat16 loss float32 parameter float32
	// [0 1 1 0]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
