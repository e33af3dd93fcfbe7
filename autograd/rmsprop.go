package autograd

import (
	"context"
	"errors"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// RMSpropConfig are the options of torch.optim.RMSprop.
type RMSpropConfig struct {
	LR          *float64 // nil: 0.01
	Alpha       *float64 // nil: 0.99; the share of the past in the mean of squares
	Eps         *float64 // nil: 1e-8
	WeightDecay float64
	Momentum    float64
	Centered    bool // the squares count without the square of the mean
	Maximize    bool // steps go up the gradient
}

// RMSprop is torch.optim.RMSprop. It keeps a tensor a parameter, one more if it is centered, and one more with momentum.
type RMSprop struct {
	optimizerState
	base     []tensor.RMSprop // of each group, without learning rate and momentum
	centered []bool           // of each group
	updates  []tensor.Update[tensor.RMSprop]
}

// NewRMSprop makes an optimiser of the parameters.
func NewRMSprop(params Parameters, cfg RMSpropConfig) (*RMSprop, error) {
	o := &RMSprop{}
	o.kind = "RMSprop"
	o.slots = func(g int) ([]slot, int) {
		all := rmspropSlots
		if o.centered[g] {
			all = centeredSlots
		}
		if o.groups[g].momentum == 0 {
			return all, len(all) - 1
		}
		return all, len(all)
	}
	if err := o.add("NewRMSprop", params, cfg); err != nil {
		return nil, err
	}
	return o, nil
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group). What cfg leaves out is PyTorch's default,
// not the first group's. After an error the optimiser is as it was.
func (o *RMSprop) AddGroup(params Parameters, cfg RMSpropConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *RMSprop) add(op string, params Parameters, cfg RMSpropConfig) error {
	base := tensor.RMSprop{
		Alpha: valueOr(cfg.Alpha, 0.99), Eps: valueOr(cfg.Eps, 1e-8), WeightDecay: cfg.WeightDecay, Maximize: cfg.Maximize,
	}
	if err := errors.Join(
		within(op, "Alpha", base.Alpha, 0, math.MaxFloat64),
		within(op, "Eps", base.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", base.WeightDecay, 0, math.MaxFloat64),
		within(op, "Momentum", cfg.Momentum, 0, math.MaxFloat64)); err != nil {
		return err
	}
	g := Group{lr: valueOr(cfg.LR, 1e-2), momentum: cfg.Momentum, cycled: true, greatest: math.MaxFloat64}
	if err := o.addGroup(op, params, g); err != nil {
		return err
	}
	o.base, o.centered = append(o.base, base), append(o.centered, cfg.Centered)
	return nil
}

var (
	rmspropSlots  = []slot{{"square_avg", 0}, {"momentum_buffer", 0}}
	centeredSlots = []slot{{"square_avg", 0}, {"grad_avg", 0}, {"momentum_buffer", 0}}
)

// Step updates every parameter that has a gradient and is not frozen.
func (o *RMSprop) Step(ctx context.Context) error { return o.stepAmong(ctx, nil) }

// stepAmong is Step for those of the parameters that are named by number; nil: for all.
func (o *RMSprop) stepAmong(ctx context.Context, among []int) error {
	return stepAll(ctx, &o.optimizerState, among, &o.updates, func(i int) tensor.Update[tensor.RMSprop] {
		p, g := o.params[i].operands()
		u := tensor.Update[tensor.RMSprop]{Rule: o.next(i), P: p, G: g, State: [3]*tensor.Tensor{o.state[i][0]}}
		buf := 1
		if o.centered[o.of[i]] {
			u.State[1], buf = o.state[i][1], 2
		}
		u.State[2] = o.optional(i, buf)
		if o.rt.Capturing() != nil {
			u.Next = func() tensor.RMSprop { return o.next(i) }
		}
		return u
	})
}

// next is the next step of the i-th parameter.
func (o *RMSprop) next(i int) tensor.RMSprop {
	g, step := o.groups[o.of[i]], o.base[o.of[i]]
	step.LR, step.Momentum = g.lr, g.momentum
	return step
}
