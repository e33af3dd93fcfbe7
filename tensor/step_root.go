package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

// RMSpropStep is one step of torch.optim.RMSprop.
type RMSpropStep struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool // the step goes up the gradient
}

// RMSpropUpdate is the step of one parameter: V are the means of the squares of the gradients. Mean is nil, or holds the means of the
// gradients (centered). In a capture Next gives the step of each replay, whose LR and Momentum count; nil: it is the same each time.
type RMSpropUpdate struct {
	RMSpropStep
	P, G, V *Tensor
	Mean    *Tensor
	Buf     *Tensor // left alone, and may be nil, if Momentum is 0
	Next    func() RMSpropStep
}

// StepRMSpropAll updates parameters in place with their gradients and state, which all have the parameter's shape: on a GPU one launch
// does 48 of them. No two updates may share memory. If one can't be done none is.
func (rt *Runtime) StepRMSpropAll(ctx context.Context, updates []RMSpropUpdate) error {
	steps := takeSteps[plan.RMSprop](&rmspropSteps)
	defer steps.give(&rmspropSteps)
	for i := range updates {
		u := &updates[i]
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("tensor: StepRMSprop: %w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		buf := u.Buf
		if u.Momentum == 0 {
			buf = nil // as PyTorch, which leaves it alone
		}
		if err := steps.add(rt, "StepRMSprop", u.shared(), u.P, u.G, u.V, u.Mean, buf); err != nil {
			return err
		}
		u.own(steps.row(plan.RMSpropWidth))
		if next := u.Next; next != nil && rt.capturing.Load() != nil {
			steps.next(i, func(to []float64) error {
				s := next()
				s.own(to)
				return sameBuffer("RMSprop", s.Momentum, buf != nil)
			})
		}
	}
	return steps.queue(ctx, rt, backend.RMSpropStep)
}

func (s *RMSpropStep) shared() plan.RMSprop {
	return plan.RMSprop{Alpha: s.Alpha, C: 1 - s.Alpha, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
}

func (s *RMSpropStep) own(to []float64) {
	to[plan.RMSpropRate], to[plan.RMSpropMomentum] = s.LR, s.Momentum
}

// AdagradStep is one step of torch.optim.Adagrad.
type AdagradStep struct {
	LR, LRDecay, WeightDecay, Eps float64
	Step                          int  // counts from 1
	Maximize                      bool // the step goes up the gradient
}

// AdagradUpdate is the step of one parameter: Sum are the sums of the squares of the gradients. In a capture Next gives the step of each
// replay, whose LR and Step count; nil: it is the same each time.
type AdagradUpdate struct {
	AdagradStep
	P, G, Sum *Tensor
	Next      func() AdagradStep
}

// StepAdagradAll updates parameters in place as StepRMSpropAll does.
func (rt *Runtime) StepAdagradAll(ctx context.Context, updates []AdagradUpdate) error {
	steps := takeSteps[plan.Adagrad](&adagradSteps)
	defer steps.give(&adagradSteps)
	for i := range updates {
		u := &updates[i]
		if u.Step < 1 {
			return fmt.Errorf("tensor: StepAdagrad: %w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		if err := steps.add(rt, "StepAdagrad", u.shared(), u.P, u.G, u.Sum); err != nil {
			return err
		}
		u.own(steps.row(plan.AdagradWidth))
		if next := u.Next; next != nil && rt.capturing.Load() != nil {
			steps.next(i, func(to []float64) error {
				s := next()
				s.own(to)
				return nil
			})
		}
	}
	return steps.queue(ctx, rt, backend.AdagradStep)
}

func (s *AdagradStep) shared() plan.Adagrad {
	return plan.Adagrad{Decay: s.WeightDecay, Eps: s.Eps, Sign: sign(s.Maximize)}
}

func (s *AdagradStep) own(to []float64) {
	to[plan.AdagradRate] = s.LR / (1 + float64(s.Step-1)*s.LRDecay)
}
