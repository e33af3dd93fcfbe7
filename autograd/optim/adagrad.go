package optim

import (
	"context"
	"errors"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// AdagradConfig are the options of torch.optim.Adagrad.
type AdagradConfig struct {
	LR          *float64 // nil: 0.01
	LRDecay     float64
	WeightDecay float64
	// InitialAccumulatorValue is the first value of the sums of squares.
	InitialAccumulatorValue float64
	Eps                     *float64 // nil: 1e-10
	Maximize                bool     // steps go up the gradient
}

// Adagrad is torch.optim.Adagrad. It keeps one tensor per parameter.
type Adagrad struct{ Base }

// NewAdagrad returns an optimiser of the parameters. Its first error sticks: [Base.Err].
func NewAdagrad(params autograd.Parameters, cfg AdagradConfig) *Adagrad {
	o := new(Adagrad)
	o.Init(o, "Adagrad", o.update)
	o.Fail(o.add("NewAdagrad", params, cfg))
	return o
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group).
// Options that cfg leaves out have PyTorch's defaults, not the first group's values. After an error
// the optimiser is unchanged.
func (o *Adagrad) AddGroup(params autograd.Parameters, cfg AdagradConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *Adagrad) add(op string, params autograd.Parameters, cfg AdagradConfig) error {
	rule := tensor.Adagrad{LRDecay: cfg.LRDecay, WeightDecay: cfg.WeightDecay, Eps: check.Or(cfg.Eps, 1e-10), Maximize: cfg.Maximize}
	if err := errors.Join(
		within(op, "LRDecay", rule.LRDecay, 0, math.MaxFloat64),
		within(op, "WeightDecay", rule.WeightDecay, 0, math.MaxFloat64),
		within(op, "InitialAccumulatorValue", cfg.InitialAccumulatorValue, 0, math.MaxFloat64),
		within(op, "Eps", rule.Eps, 0, math.MaxFloat64)); err != nil {
		return err
	}
	return o.addGroup(op, params, Options{LR: check.Or(cfg.LR, 1e-2), State: []Slot{{Name: "sum", Fill: cfg.InitialAccumulatorValue}}, Own: rule})
}

func (o *Adagrad) update(ctx context.Context, us []Update) error {
	return StepRule(ctx, us, adagradRule)
}

func adagradRule(u *Update) (tensor.Adagrad, [3]*tensor.Tensor) {
	r := u.Group.Own().(tensor.Adagrad)
	r.LR, r.Step = u.LR, u.Step
	return r, u.tensors()
}
