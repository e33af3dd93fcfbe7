package metric_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// Example reads the mean loss and the accuracy of 200 steps once, at the end.
func Example() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	in := nn.Init(ctx, env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 1}, 2) // inclusive or
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	loss, accuracy := nn.Own(in, metric.NewMean(ctx, env)), nn.Own(in, metric.NewMean(ctx, env))
	for _, tape := range in.Steps(200) {
		logits := model.Forward(tape, tape.Input(x))
		accuracy.AddHits(tape, logits, y)
		l := tape.CrossEntropy(logits, y)
		loss.Add(tape, l, y)
		optim.Minimize(tape, l, adam)
	}
	mean, err2 := loss.Value(ctx)
	hits, err3 := accuracy.Value(ctx)
	fmt.Println(mean < 0.1, hits > 0.9, errors.Join(err, err2, err3, in.Close(), env.Close()))
	// Output: true true <nil>
}
