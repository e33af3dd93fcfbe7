package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// Gated is a gated linear layer, x Weightᵀ times the sigmoid of x Gateᵀ.
type Gated struct{ Weight, Gate *autograd.Parameter }

// NewGated makes a layer of n inputs and m outputs.
func NewGated(in *nn.Initializer, n, m int) *Gated {
	bound := 1 / math.Sqrt(float64(n))
	return &Gated{in.Uniform(-bound, bound, m, n), in.Uniform(-bound, bound, m, n)}
}

func (l *Gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		return t.Mul(t.Linear(x, t.Param(l.Weight), nil), t.Sigmoid(t.Linear(x, t.Param(l.Gate), nil)))
	})
}

func (l *Gated) Parameters() autograd.Parameters { return nn.ParametersOf(l) }

// A layer of the program's own, as a part of a model that learns the exclusive or.
func ExampleTape_Layer() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	model := nn.Sequential{NewGated(in, 2, 8), in.Linear(8, 2)}
	for _, p := range model.Parameters() {
		fmt.Println(p.Name, p.Value().Shape())
	}
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	for step, tape := range in.Steps(100) {
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		if step == 0 || step == 99 {
			fmt.Println("step", step, "the loss is above 0.1:", loss.Item() > 0.1)
		}
		optim.Minimize(tape, loss, adam)
	}
	check(errors.Join(in.Close(), env.Close()))
	// Output:
	// 0.weight (8, 2)
	// 0.gate (8, 2)
	// 1.weight (2, 8)
	// 1.bias (2)
	// step 0 the loss is above 0.1: true
	// step 99 the loss is above 0.1: false
}
