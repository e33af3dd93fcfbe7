package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// AdamConfig are the options of torch.optim.Adam and AdamW.
type AdamConfig struct {
	LR           float64 // 0: 1e-3
	Beta1, Beta2 float64 // 0: 0.9, 0.999
	Eps          float64 // 0: 1e-8
	WeightDecay  float64 // 0: none; PyTorch's default for AdamW is 0.01
}

// Adam is Adam or AdamW (torch.optim). It keeps two tensors a parameter.
type Adam struct {
	slots
	cfg       AdamConfig
	decoupled bool
	updates   []tensor.AdamUpdate // of one Step
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
	for _, d := range []struct {
		v       *float64
		instead float64
	}{{&cfg.LR, 1e-3}, {&cfg.Beta1, 0.9}, {&cfg.Beta2, 0.999}, {&cfg.Eps, 1e-8}} {
		if *d.v == 0 {
			*d.v = d.instead
		}
	}
	below1 := math.Nextafter(1, 0)
	if err := errors.Join(
		within(op, "Beta1", cfg.Beta1, 0, below1),
		within(op, "Beta2", cfg.Beta2, 0, below1),
		within(op, "Eps", cfg.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", cfg.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return nil, err
	}
	s, err := newSlots(op, params, cfg.LR, 2)
	if err != nil {
		return nil, err
	}
	return &Adam{slots: s, cfg: cfg, decoupled: decoupled}, nil
}

// Step updates every parameter that has a gradient.
func (o *Adam) Step(ctx context.Context) error {
	due, err := o.due(ctx)
	if err != nil {
		return err
	}
	o.updates = o.updates[:0]
	for _, i := range due {
		p := o.params[i]
		o.updates = append(o.updates, tensor.AdamUpdate{AdamStep: tensor.AdamStep{
			LR: o.lr, Beta1: o.cfg.Beta1, Beta2: o.cfg.Beta2, Eps: o.cfg.Eps, WeightDecay: o.cfg.WeightDecay,
			Decoupled: o.decoupled, Step: o.steps[i] + 1,
		}, P: p.value, G: p.grad, M: o.state[i][0], V: o.state[i][1]})
	}
	defer clear(o.updates) // the gradients are not the optimiser's to keep
	for from := 0; from < len(due); {
		rt, to := o.run(due, from)
		if err := rt.StepAdamAll(ctx, o.updates[from:to]); err != nil {
			return fmt.Errorf("autograd: Adam step: %w", err)
		}
		o.stepped(due[from:to])
		from = to
	}
	return nil
}
