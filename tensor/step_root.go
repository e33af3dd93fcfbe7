package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
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
	return rt.step(ctx, backend.RMSpropStep, "StepRMSprop", len(updates), func(i int, to *update) error {
		u := &updates[i]
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("%w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		to.step, to.p, to.g, to.state = &u.RMSpropStep, u.P, u.G, [3]*Tensor{u.V, u.Mean}
		if u.Momentum != 0 { // else the buffer is left alone, as PyTorch does
			to.state[2] = u.Buf
		}
		if next, buffered := u.Next, u.Momentum != 0; next != nil && rt.Capturing() != nil {
			s := u.RMSpropStep
			to.next = func() (stepper, error) {
				s = next()
				return &s, sameBuffer("RMSprop", s.Momentum, buffered)
			}
		}
		return nil
	})
}

func (s *RMSpropStep) shared(n *kernel.Numbers) {
	*kernel.NumbersOf[kernel.RMSpropShared](&n[0]) = kernel.RMSpropShared{Alpha: s.Alpha, C: 1 - s.Alpha, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
}

func (s *RMSpropStep) own(first *float64) {
	*kernel.NumbersOf[kernel.RMSpropOwn](first) = kernel.RMSpropOwn{Rate: s.LR, Momentum: s.Momentum}
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
	return rt.step(ctx, backend.AdagradStep, "StepAdagrad", len(updates), func(i int, to *update) error {
		u := &updates[i]
		if u.Step < 1 {
			return fmt.Errorf("%w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		to.step, to.p, to.g, to.state[0] = &u.AdagradStep, u.P, u.G, u.Sum
		if next := u.Next; next != nil && rt.Capturing() != nil {
			s := u.AdagradStep
			to.next = func() (stepper, error) { s = next(); return &s, nil }
		}
		return nil
	})
}

func (s *AdagradStep) shared(n *kernel.Numbers) {
	*kernel.NumbersOf[kernel.AdagradShared](&n[0]) = kernel.AdagradShared{Decay: s.WeightDecay, Eps: s.Eps, Sign: sign(s.Maximize)}
}

func (s *AdagradStep) own(first *float64) {
	*kernel.NumbersOf[kernel.AdagradOwn](first) = kernel.AdagradOwn{Rate: s.LR / (1 + float64(s.Step-1)*s.LRDecay)}
}
