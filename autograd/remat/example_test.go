package remat_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// Example trains four blocks with and without their activations in memory.
func Example() {
	peak := func(recompute bool) (bytes int64, err error) {
		env, err := tensor.Open("host")
		in := nn.Init(context.Background(), env, nn.Seed(1))
		x := in.Tensor(make([]float64, 256*64), 256, 64)
		y := in.Labels(make([]int, 256), 64)
		var blocks nn.Sequential
		for range 4 {
			var block nn.Layer = nn.Sequential{in.Linear(64, 256), nn.GELU{}, in.Linear(256, 64)}
			if recompute {
				block = remat.Layer(block)
			}
			blocks = append(blocks, block)
		}
		sgd := nn.Own(in, optim.NewSGD(blocks.Parameters(), optim.SGDConfig{LR: new(0.1)}))
		for _, tape := range in.Steps(2) {
			optim.Minimize(tape, tape.CrossEntropy(blocks.Forward(tape, tape.Input(x)), y), sgd)
		}
		bytes = env.Cache().MaxMemoryAllocated()
		return bytes, errors.Join(err, in.Close(), env.Close())
	}
	all, err := peak(false)
	few, err2 := peak(true)
	fmt.Println(few < all, errors.Join(err, err2))
	// Output: true <nil>
}
