package optim_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// lion is an optimiser of a program's own (Chen et al., 2023, https://arxiv.org/abs/2302.06675).
type lion struct{ optim.Base }

func newLion(ps autograd.Parameters, lr float64) *lion {
	o := new(lion)
	o.Init(o, "Lion", o.update)
	o.Fail(o.AddGroup(ps, optim.Options{LR: lr, State: []optim.Slot{{Name: "exp_avg"}}}))
	return o
}

func (o *lion) update(ctx context.Context, us []optim.Update) error {
	return optim.StepRule(ctx, us, func(u *optim.Update) (tensor.Lion, [3]*tensor.Tensor) {
		return tensor.Lion{LR: u.LR, Beta1: 0.9, Beta2: 0.99}, [3]*tensor.Tensor{u.State[0]}
	})
}

// A custom optimiser in 15 lines. Schedules, groups, checkpoints, offload, sharding, captures and
// steps in the backward pass work with it.
func ExampleBase() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1), nn.Dtype(tensor.Float64))
	w := in.Parameter([]float64{1, 2})
	opt := nn.Own(in, newLion(autograd.Parameters{{Name: "w", Parameter: w}}, 0.25))
	half, err := optim.NewScheduler(opt, optim.StepLR{Size: 2, Gamma: new(0.5)})
	check(err)
	for _, tape := range in.Steps(4) {
		optim.Minimize(tape, tape.Sum(tape.Square(tape.Param(w))), opt)
		in.Fail(half.Step())
	}
	values, err := tensor.ToSlice[float64](ctx, w.Value(), nil)
	check(errors.Join(err, in.Close(), env.Close()))
	fmt.Println(opt, values)
	// Output: Lion of 1 parameters, learning rate 0.0625 [0.25 1.25]
}
