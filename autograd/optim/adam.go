package optim

import (
	"context"
	"errors"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// AdamConfig are the options of torch.optim.Adam and AdamW. Numbers are pointers, such as
// new(0.01), because 0 is also a valid value.
type AdamConfig struct {
	LR           *float64 // nil: 1e-3
	Beta1, Beta2 *float64 // nil: 0.9, 0.999
	Eps          *float64 // nil: 1e-8
	WeightDecay  *float64 // nil: 0 for Adam, 0.01 for AdamW
	AMSGrad      bool     // use the greatest second moment so far, a third tensor per parameter
	Maximize     bool     // steps go up the gradient
}

// Adam is Adam or AdamW (torch.optim). It keeps two tensors per parameter, and a third one with
// AMSGrad.
type Adam struct {
	Base
	decoupled bool
}

// NewAdam returns an optimiser of the parameters that adds the weight decay to the gradient
// (torch.optim.Adam). Its first error sticks: [Base.Err].
func NewAdam(params autograd.Parameters, cfg AdamConfig) *Adam {
	return newAdam("Adam", params, cfg, false)
}

// NewAdamW returns an optimiser that applies the weight decay directly to the parameters
// (torch.optim.AdamW). Its first error sticks: [Base.Err].
func NewAdamW(params autograd.Parameters, cfg AdamConfig) *Adam {
	return newAdam("AdamW", params, cfg, true)
}

func newAdam(kind string, params autograd.Parameters, cfg AdamConfig, decoupled bool) *Adam {
	o := &Adam{decoupled: decoupled}
	o.Init(o, kind, o.update)
	o.Fail(o.add("New"+kind, params, cfg))
	return o
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group).
// Options that cfg leaves out have PyTorch's defaults, not the first group's values. After an error
// the optimiser is unchanged.
func (o *Adam) AddGroup(params autograd.Parameters, cfg AdamConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *Adam) add(op string, params autograd.Parameters, cfg AdamConfig) error {
	decay := 0.0
	if o.decoupled {
		decay = 0.01
	}
	rule := tensor.Adam{
		Beta2: check.Or(cfg.Beta2, 0.999), Eps: check.Or(cfg.Eps, 1e-8),
		WeightDecay: check.Or(cfg.WeightDecay, decay), Decoupled: o.decoupled, Maximize: cfg.Maximize,
	}
	beta1 := check.Or(cfg.Beta1, 0.9)
	if err := errors.Join(
		within(op, "Beta1", beta1, 0, below1),
		within(op, "Beta2", rule.Beta2, 0, below1),
		within(op, "Eps", rule.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", rule.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return err
	}
	slots := []Slot{{Name: "exp_avg"}, {Name: "exp_avg_sq"}}
	if cfg.AMSGrad {
		slots = append(slots, Slot{Name: "max_exp_avg_sq"})
	}
	return o.addGroup(op, params, Options{LR: check.Or(cfg.LR, 1e-3), Momentum: &beta1, MaxMomentum: below1, State: slots, Own: rule})
}

func (o *Adam) update(ctx context.Context, us []Update) error { return StepRule(ctx, us, adamRule) }

func adamRule(u *Update) (tensor.Adam, [3]*tensor.Tensor) {
	r := u.Group.Own().(tensor.Adam)
	r.LR, r.Beta1, r.Step = u.LR, u.Momentum, u.Step
	return r, u.tensors()
}
