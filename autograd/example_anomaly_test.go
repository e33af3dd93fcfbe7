package autograd_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// The logarithm of a number that is not positive makes the loss a NaN.
func ExampleDetectAnomaly() {
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(context.Background(), env, nn.Seed(1))
	x := in.Tensor([]float64{-1, 2}, 1, 2)
	model := nn.Sequential{in.Linear(2, 3)}
	sgd := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{}))
	for _, tape := range in.Steps(10) {
		autograd.DetectAnomaly(tape)
		y := tape.Log(model.Forward(tape, tape.Input(x)))
		optim.Minimize(tape, tape.Mean(y), sgd)
	}
	var found *autograd.AnomalyError
	if errors.As(in.Err(), &found) {
		fmt.Println(found.Op, found.Shape, "NaNs:", found.NaNs > 0)
	}
	_, _ = in.Close(), env.Close()
	// Output: Log (1, 3) NaNs: true
}
