package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// SGDStep is one step of torch.optim.SGD.
type SGDStep struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	First                                bool // the momentum buffer holds nothing yet
}

// StepSGD updates the parameters p in place with the gradients g and the momentum buffer buf, which may be nil
// if Momentum is 0. All have one shape.
func (rt *Runtime) StepSGD(_ context.Context, s SGDStep, p, g, buf *Tensor) error {
	operands := []*Tensor{p, g}
	if buf != nil {
		operands = append(operands, buf)
	} else if s.Momentum != 0 {
		return fmt.Errorf("tensor: StepSGD: %w: momentum %v needs a buffer", ErrInvalid, s.Momentum)
	}
	c, err := rt.useStep("StepSGD", operands...)
	if err != nil {
		return err
	}
	defer c.end()
	return rt.host.sgd(kernel.SGD(s), p, g, buf)
}

// AdamStep is one step of torch.optim.Adam, or AdamW if the decay is decoupled.
type AdamStep struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Decoupled                          bool
	Step                               int // counts from 1
}

// StepAdam updates the parameters p and the moments m and v in place with the gradients g, in one pass over
// the memory. All have one shape.
func (rt *Runtime) StepAdam(_ context.Context, s AdamStep, p, g, m, v *Tensor) error {
	if s.Step < 1 {
		return fmt.Errorf("tensor: StepAdam: %w: step %d: want at least 1", ErrInvalid, s.Step)
	}
	c, err := rt.useStep("StepAdam", p, g, m, v)
	if err != nil {
		return err
	}
	defer c.end()
	t := float64(s.Step)
	return rt.host.adam(kernel.Adam{
		LR: s.LR, WeightDecay: s.WeightDecay, Decoupled: s.Decoupled, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps,
		StepSize:   s.LR / (1 - math.Pow(s.Beta1, t)),
		Correction: math.Sqrt(1 - math.Pow(s.Beta2, t)),
	}, p, g, m, v)
}

func (rt *Runtime) useStep(op string, ts ...*Tensor) (held, error) {
	c, err := rt.useFloats(op, ts...)
	if err != nil {
		return c, err
	}
	for i, t := range ts {
		for _, u := range ts[:i] {
			if err := sameShape(op, u, t); err != nil {
				c.end()
				return held{}, err
			}
			if u.shares(t) {
				c.end()
				return held{}, overlapError(op)
			}
		}
	}
	return c, nil
}
