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
}

// SGD is stochastic gradient descent (torch.optim.SGD). With momentum it keeps one tensor a parameter.
type SGD struct {
	optimizerState
	cfg     SGDConfig
	updates []tensor.SGDUpdate // of one Step
}

// NewSGD makes an optimiser of the parameters.
func NewSGD(params Parameters, cfg SGDConfig) (*SGD, error) {
	if cfg.Nesterov && (cfg.Momentum == 0 || cfg.Dampening != 0) {
		return nil, fmt.Errorf("autograd: NewSGD: %w: Nesterov needs Momentum, and no Dampening", ErrInvalid)
	}
	if err := errors.Join(
		within("NewSGD", "Momentum", cfg.Momentum, 0, math.MaxFloat64),
		within("NewSGD", "Dampening", cfg.Dampening, -math.MaxFloat64, math.MaxFloat64),
		within("NewSGD", "WeightDecay", cfg.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return nil, err
	}
	n := 0
	if cfg.Momentum != 0 {
		n = 1
	}
	s, err := newOptimizerState("NewSGD", params, valueOr(cfg.LR, 1e-3), n)
	if err != nil {
		return nil, err
	}
	return &SGD{optimizerState: s, cfg: cfg}, nil
}

// Step updates every parameter that has a gradient.
func (o *SGD) Step(ctx context.Context) error {
	due, err := o.due(ctx)
	if err != nil || len(due) == 0 {
		return err
	}
	o.updates = o.updates[:0]
	for _, i := range due {
		p := o.params[i]
		u := tensor.SGDUpdate{SGDStep: tensor.SGDStep{
			LR: o.lr, Momentum: o.cfg.Momentum, Dampening: o.cfg.Dampening, WeightDecay: o.cfg.WeightDecay,
			Nesterov: o.cfg.Nesterov, First: o.steps[i] == 0,
		}, P: p.value, G: p.grad}
		if o.n > 0 {
			u.Buf = o.state[i][0]
		}
		o.updates = append(o.updates, u)
	}
	defer clear(o.updates) // the gradients are not the optimiser's to keep
	if err := o.rt.StepSGDAll(ctx, o.updates); err != nil {
		return fmt.Errorf("autograd: SGD step: %w", err)
	}
	o.stepped(due)
	return nil
}
