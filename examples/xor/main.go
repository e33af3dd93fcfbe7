// Xor trains a model of two layers on exclusive or.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

func main() {
	env, err := tensor.Open("host")
	in := nn.Init(context.Background(), env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2) // XOR
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	for step, tape := range in.Steps(200) {
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		optim.Minimize(tape, loss, adam)
		if step%50 == 49 {
			fmt.Printf("step %d: loss %.4f, %d bytes at most\n", step+1, loss.Item(), env.Cache().MaxMemoryAllocated())
		}
	}
	if err := errors.Join(err, in.Close(), env.Close()); err != nil {
		log.Fatal(err)
	}
}
