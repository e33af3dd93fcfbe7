package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// AdamConfig are the options of torch.optim.Adam and AdamW: new(0.01) is a number, and 0 is one as well.
type AdamConfig struct {
	LR           *float64 // nil: 1e-3
	Beta1, Beta2 *float64 // nil: 0.9, 0.999
	Eps          *float64 // nil: 1e-8
	WeightDecay  float64  // PyTorch's default for AdamW is 0.01
}

// Adam is Adam or AdamW (torch.optim). It keeps two tensors a parameter.
type Adam struct {
	optimizerState
	base    tensor.AdamStep     // of every step, without its number and learning rate
	updates []tensor.AdamUpdate // of one Step
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
	base := tensor.AdamStep{
		Beta1: valueOr(cfg.Beta1, 0.9), Beta2: valueOr(cfg.Beta2, 0.999), Eps: valueOr(cfg.Eps, 1e-8),
		WeightDecay: cfg.WeightDecay, Decoupled: decoupled,
	}
	below1 := math.Nextafter(1, 0)
	if err := errors.Join(
		within(op, "Beta1", base.Beta1, 0, below1),
		within(op, "Beta2", base.Beta2, 0, below1),
		within(op, "Eps", base.Eps, 0, math.MaxFloat64),
		within(op, "WeightDecay", base.WeightDecay, 0, math.MaxFloat64)); err != nil {
		return nil, err
	}
	s, err := newOptimizerState(op, params, valueOr(cfg.LR, 1e-3), 2)
	if err != nil {
		return nil, err
	}
	return &Adam{optimizerState: s, base: base}, nil
}

// Step updates every parameter that has a gradient.
func (o *Adam) Step(ctx context.Context) error {
	due, err := o.due(ctx)
	if err != nil || len(due) == 0 {
		return err
	}
	o.updates = o.updates[:0]
	for _, i := range due {
		p, step := o.params[i], o.base
		step.LR, step.Step = o.lr, o.steps[i]+1
		o.updates = append(o.updates, tensor.AdamUpdate{AdamStep: step, P: p.value, G: p.grad, M: o.state[i][0], V: o.state[i][1]})
	}
	defer clear(o.updates) // the gradients are not the optimiser's to keep
	if err := o.rt.StepAdamAll(ctx, o.updates); err != nil {
		return fmt.Errorf("autograd: Adam step: %w", err)
	}
	o.stepped(due)
	return nil
}
