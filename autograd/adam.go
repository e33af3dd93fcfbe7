package autograd

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/cistern-ml/cistern/tensor"
)

// AdamConfig are the options of torch.optim.Adam and AdamW: new(0.01) is a number, and 0 is one as well.
type AdamConfig struct {
	LR           *float64 // nil: 1e-3
	Beta1, Beta2 *float64 // nil: 0.9, 0.999
	Eps          *float64 // nil: 1e-8
	WeightDecay  *float64 // nil: 0 for Adam, 0.01 for AdamW
	AMSGrad      bool     // the greatest second moment counts, not the present one: a third tensor a parameter
	Maximize     bool     // steps go up the gradient
}

// Adam is Adam or AdamW (torch.optim). It keeps two tensors a parameter, and a third one with AMSGrad.
type Adam struct {
	optimizerState
	decoupled bool
	base      []tensor.Adam // of each group, without its number, learning rate and beta1
	amsgrad   []bool        // of each group
	updates   []tensor.Update[tensor.Adam]
}

// NewAdam makes an optimiser of the parameters whose weight decay joins the gradient (torch.optim.Adam).
func NewAdam(params Parameters, cfg AdamConfig) (*Adam, error) {
	return newAdam("NewAdam", params, cfg, false)
}

// NewAdamW makes an optimiser of the parameters whose weight decay shrinks them directly (torch.optim.AdamW).
func NewAdamW(params Parameters, cfg AdamConfig) (*Adam, error) {
	return newAdam("NewAdamW", params, cfg, true)
}

func newAdam(op string, params Parameters, cfg AdamConfig, decoupled bool) (*Adam, error) {
	o := &Adam{decoupled: decoupled}
	o.kind = strings.TrimPrefix(op, "New")
	o.slots = func(g int) ([]slot, int) {
		if o.amsgrad[g] {
			return adamSlots, 3
		}
		return adamSlots[:2], 2
	}
	if err := o.add(op, params, cfg); err != nil {
		return nil, err
	}
	return o, nil
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group). What cfg leaves out is PyTorch's default,
// not the first group's. After an error the optimiser is as it was.
func (o *Adam) AddGroup(params Parameters, cfg AdamConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *Adam) add(op string, params Parameters, cfg AdamConfig) error {
	decay := 0.0
	if o.decoupled {
		decay = 0.01
	}
	base := tensor.Adam{
		Beta2: valueOr(cfg.Beta2, 0.999), Eps: valueOr(cfg.Eps, 1e-8),
		WeightDecay: valueOr(cfg.WeightDecay, decay), Decoupled: o.decoupled, Maximize: cfg.Maximize,
	}
	beta1 := valueOr(cfg.Beta1, 0.9)
	if err := errors.Join(
		within(op, "Beta1", beta1, 0, below1),
		within(op, "Beta2", base.Beta2, 0, below1),
		within(op, "Eps", base.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", base.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return err
	}
	g := Group{lr: valueOr(cfg.LR, 1e-3), momentum: beta1, cycled: true, greatest: below1}
	if err := o.addGroup(op, params, g); err != nil {
		return err
	}
	o.base, o.amsgrad = append(o.base, base), append(o.amsgrad, cfg.AMSGrad)
	return nil
}

var adamSlots = []slot{{"exp_avg", 0}, {"exp_avg_sq", 0}, {"max_exp_avg_sq", 0}}

// Step updates every parameter that has a gradient and is not frozen.
func (o *Adam) Step(ctx context.Context) error { return o.stepAmong(ctx, nil) }

// stepAmong is Step for those of the parameters that are named by number; nil: for all.
func (o *Adam) stepAmong(ctx context.Context, among []int) error {
	return stepAll(ctx, &o.optimizerState, among, &o.updates, func(i int) tensor.Update[tensor.Adam] {
		p, g := o.params[i].operands()
		u := tensor.Update[tensor.Adam]{Rule: o.next(i), P: p, G: g, State: [3]*tensor.Tensor{o.state[i][0], o.state[i][1], o.optional(i, 2)}}
		if o.rt.Capturing() != nil {
			u.Next = func() tensor.Adam { return o.next(i) }
		}
		return u
	})
}

// next is the next step of the i-th parameter.
func (o *Adam) next(i int) tensor.Adam {
	g, step := o.groups[o.of[i]], o.base[o.of[i]]
	step.LR, step.Beta1, step.Step = g.lr, g.momentum, o.steps[i]+1
	return step
}
