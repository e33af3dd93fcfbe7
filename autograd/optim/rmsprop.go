package optim

import (
	"context"
	"errors"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// RMSpropConfig are the options of torch.optim.RMSprop.
type RMSpropConfig struct {
	LR          *float64 // nil: 0.01
	Alpha       *float64 // nil: 0.99; the decay factor of the mean of squares
	Eps         *float64 // nil: 1e-8
	WeightDecay float64
	Momentum    float64
	Centered    bool // subtract the squared mean from the mean of squares
	Maximize    bool // steps go up the gradient
}

// RMSprop is torch.optim.RMSprop. It keeps one tensor per parameter, one more if it is centered,
// and one more with momentum.
type RMSprop struct{ Base }

// rmspropOwn is a group's Own.
type rmspropOwn struct {
	rule     tensor.RMSprop
	centered bool
}

// NewRMSprop returns an optimiser of the parameters. Its first error sticks: [Base.Err].
func NewRMSprop(params autograd.Parameters, cfg RMSpropConfig) *RMSprop {
	o := new(RMSprop)
	o.Init(o, "RMSprop", o.update)
	o.Fail(o.add("NewRMSprop", params, cfg))
	return o
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group).
// Options that cfg leaves out have PyTorch's defaults, not the first group's values. After an error
// the optimiser is unchanged.
func (o *RMSprop) AddGroup(params autograd.Parameters, cfg RMSpropConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *RMSprop) add(op string, params autograd.Parameters, cfg RMSpropConfig) error {
	rule := tensor.RMSprop{
		Alpha: check.Or(cfg.Alpha, 0.99), Eps: check.Or(cfg.Eps, 1e-8), WeightDecay: cfg.WeightDecay, Maximize: cfg.Maximize,
	}
	if err := errors.Join(
		within(op, "Alpha", rule.Alpha, 0, math.MaxFloat64),
		within(op, "Eps", rule.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", rule.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return err
	}
	slots := []Slot{{Name: "square_avg"}}
	if cfg.Centered {
		slots = append(slots, Slot{Name: "grad_avg"})
	}
	slots = append(slots, Slot{Name: "momentum_buffer", Momentum: true})
	return o.addGroup(op, params, Options{LR: check.Or(cfg.LR, 1e-2), Momentum: &cfg.Momentum, State: slots, Own: rmspropOwn{rule, cfg.Centered}})
}

func (o *RMSprop) update(ctx context.Context, us []Update) error {
	return StepRule(ctx, us, rmspropRule)
}

func rmspropRule(u *Update) (tensor.RMSprop, [3]*tensor.Tensor) {
	own, state := u.Group.Own().(rmspropOwn), u.tensors()
	if !own.centered {
		state[1], state[2] = nil, state[1]
	}
	own.rule.LR, own.rule.Momentum = u.LR, u.Momentum
	return own.rule, state
}
