package forecast_test

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// training returns a program that trains with batches of n examples.
func training(n int) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		in := nn.Init(ctx, rt)
		model := nn.Sequential{in.Linear(784, 4096), nn.ReLU{}, in.Linear(4096, 10)}
		adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
		x, y := in.Zeros(n, 784), in.Labels(make([]int, n), 10)
		step := func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, rt)
			optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x.Value())), y), adam)
			return tape.Close()
		}
		return &forecast.Training{Model: model, Step: step, Close: in.Close}, in.Err()
	}
}

func Example() {
	ctx := context.Background()
	f, err := forecast.Step(ctx, "dry:cuda?gpu=T4", training(100_000))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("100,000 examples fit into a T4:", f.Fits, f.ReservedPeak>>20, "MiB")
	batch, _, err := forecast.LargestBatch(ctx, "dry:cuda?gpu=T4", 4<<30, training)
	fmt.Println("largest batch in 4 GiB:", batch, err)
	limit, _, err := forecast.SmallestLimit(ctx, "dry:cuda?gpu=T4", training(1000))
	fmt.Println("a batch of 1,000 takes:", limit>>20, "MiB", err)
	// Output:
	// 100,000 examples fit into a T4: true 5028 MiB
	// largest batch in 4 GiB: 81408 <nil>
	// a batch of 1,000 takes: 86 MiB <nil>
}
