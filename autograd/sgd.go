package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// SGDConfig are the options of torch.optim.SGD. LR is a pointer, as 0 is a learning rate too: new(0.1).
type SGDConfig struct {
	LR          *float64 // nil: 1e-3
	Momentum    float64
	Dampening   float64
	WeightDecay float64
	Nesterov    bool // needs Momentum and no Dampening
	Maximize    bool // steps go up the gradient
}

// SGD is stochastic gradient descent (torch.optim.SGD). With momentum it keeps one tensor a parameter.
type SGD struct {
	optimizerState
	base    []tensor.SGD                // of each group, without learning rate and momentum
	updates []tensor.Update[tensor.SGD] // of one Step
}

// NewSGD makes an optimiser of the parameters.
func NewSGD(params Parameters, cfg SGDConfig) (*SGD, error) {
	o := &SGD{}
	o.kind = "SGD"
	o.slots = func(g int) ([]slot, int) {
		if o.groups[g].momentum == 0 {
			return momentumSlot, 0
		}
		return momentumSlot, 1
	}
	if err := o.add("NewSGD", params, cfg); err != nil {
		return nil, err
	}
	return o, nil
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group). What cfg leaves out is PyTorch's default,
// not the first group's. After an error the optimiser is as it was.
func (o *SGD) AddGroup(params Parameters, cfg SGDConfig) error { return o.add("AddGroup", params, cfg) }

func (o *SGD) add(op string, params Parameters, cfg SGDConfig) error {
	if cfg.Nesterov && (cfg.Momentum == 0 || cfg.Dampening != 0) {
		return fmt.Errorf("autograd: %s: %w: Nesterov needs Momentum, and no Dampening", op, ErrInvalid)
	}
	if err := errors.Join(
		within(op, "Momentum", cfg.Momentum, 0, math.MaxFloat64),
		within(op, "Dampening", cfg.Dampening, -math.MaxFloat64, math.MaxFloat64),
		within(op, "WeightDecay", cfg.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return err
	}
	g := Group{lr: valueOr(cfg.LR, 1e-3), momentum: cfg.Momentum, cycled: true, greatest: math.MaxFloat64}
	if err := o.addGroup(op, params, g); err != nil {
		return err
	}
	o.base = append(o.base, tensor.SGD{
		Dampening: cfg.Dampening, WeightDecay: cfg.WeightDecay, Nesterov: cfg.Nesterov, Maximize: cfg.Maximize,
	})
	return nil
}

var momentumSlot = []slot{{"momentum_buffer", 0}}

// Step updates every parameter that has a gradient and is not frozen.
func (o *SGD) Step(ctx context.Context) error { return o.stepAmong(ctx, nil) }

// stepAmong is Step for those of the parameters that are named by number; nil: for all.
func (o *SGD) stepAmong(ctx context.Context, among []int) error {
	return stepAll(ctx, &o.optimizerState, among, &o.updates, func(i int) tensor.Update[tensor.SGD] {
		p, g := o.params[i].operands()
		u := tensor.Update[tensor.SGD]{Rule: o.next(i), P: p, G: g}
		if u.Rule.Momentum != 0 {
			u.State[0] = o.state[i][0]
		}
		if o.rt.Capturing() != nil {
			u.Next = func() tensor.SGD { return o.next(i) }
		}
		return u
	})
}

// next is the next step of the i-th parameter.
func (o *SGD) next(i int) tensor.SGD {
	g, step := o.groups[o.of[i]], o.base[o.of[i]]
	step.LR, step.Momentum, step.First = g.lr, g.momentum, !o.filled[i]
	return step
}
