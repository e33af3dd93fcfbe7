package optim

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// SGDConfig are the options of torch.optim.SGD. LR is a pointer, such as new(0.1), because 0 is
// also a valid learning rate.
type SGDConfig struct {
	LR          *float64 // nil: 1e-3
	Momentum    float64
	Dampening   float64
	WeightDecay float64
	Nesterov    bool // needs Momentum and no Dampening
	Maximize    bool // steps go up the gradient
}

// SGD is stochastic gradient descent (torch.optim.SGD). With momentum it keeps one tensor per
// parameter.
type SGD struct{ Base }

// NewSGD returns an optimiser of the parameters. Its first error sticks: [Base.Err].
func NewSGD(params autograd.Parameters, cfg SGDConfig) *SGD {
	o := new(SGD)
	o.Init(o, "SGD", o.update)
	o.Fail(o.add("NewSGD", params, cfg))
	return o
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group).
// Options that cfg leaves out have PyTorch's defaults, not the first group's values. After an error
// the optimiser is unchanged.
func (o *SGD) AddGroup(params autograd.Parameters, cfg SGDConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *SGD) add(op string, params autograd.Parameters, cfg SGDConfig) error {
	if cfg.Nesterov && (cfg.Momentum == 0 || cfg.Dampening != 0) {
		return fmt.Errorf("optim: %s: %w: Nesterov needs Momentum, and no Dampening", op, autograd.ErrInvalid)
	}
	if err := errors.Join(
		within(op, "Dampening", cfg.Dampening, -math.MaxFloat64, math.MaxFloat64),
		within(op, "WeightDecay", cfg.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return err
	}
	return o.addGroup(op, params, Options{
		LR: check.Or(cfg.LR, 1e-3), Momentum: &cfg.Momentum,
		State: []Slot{{Name: "momentum_buffer", Momentum: true}},
		Own:   tensor.SGD{Dampening: cfg.Dampening, WeightDecay: cfg.WeightDecay, Nesterov: cfg.Nesterov, Maximize: cfg.Maximize},
	})
}

func (o *SGD) update(ctx context.Context, us []Update) error { return StepRule(ctx, us, sgdRule) }

func sgdRule(u *Update) (tensor.SGD, [3]*tensor.Tensor) {
	r := u.Group.Own().(tensor.SGD)
	r.LR, r.Momentum, r.First = u.LR, u.Momentum, u.First
	return r, u.tensors()
}
