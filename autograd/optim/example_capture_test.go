package optim_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// A whole step is captured and replayed. The function is that of an eager step.
func Example_capture() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2) // XOR
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	check(adam.Prepare(ctx))
	var loss *tensor.Tensor
	graph, err := env.Capture(ctx, func(ctx context.Context) (err error) {
		for _, tape := range in.Steps(1) {
			l := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
			optim.Minimize(tape, l, adam)
			loss, err = env.Copy(ctx, l.Value())
		}
		return errors.Join(err, in.Err())
	})
	check(err)
	for step := range 200 {
		check(graph.Replay(ctx))
		if step%50 == 49 {
			l, err := tensor.Item[float32](ctx, loss)
			check(err)
			fmt.Printf("step %d: loss %.4f\n", step+1, l)
		}
	}
	check(errors.Join(graph.Close(), loss.Release(), in.Close(), env.Close()))
	// Output:
	// step 50: loss 0.0011
	// step 100: loss 0.0005
	// step 150: loss 0.0003
	// step 200: loss 0.0002
}
