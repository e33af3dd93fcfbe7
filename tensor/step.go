package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// SGDStep is one step of torch.optim.SGD.
type SGDStep struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov                             bool
	First                                bool // the momentum buffer holds nothing yet
	Maximize                             bool // the step goes up the gradient
}

// SGDUpdate is the step of one parameter. In a capture Next gives the step of each replay, whose LR, Momentum and First count; nil: it is
// the same each time.
type SGDUpdate struct {
	SGDStep
	P, G *Tensor
	Buf  *Tensor // left alone, and may be nil, if Momentum is 0
	Next func() SGDStep
}

// StepSGD updates the parameters p in place with the gradients g and the momentum buffer buf, which is left alone,
// and may be nil, if Momentum is 0. All have one shape and dtype, but that the gradients of float32 parameters may be bfloat16, in all optimisers.
func (rt *Runtime) StepSGD(ctx context.Context, s SGDStep, p, g, buf *Tensor) error {
	return rt.StepSGDAll(ctx, []SGDUpdate{{SGDStep: s, P: p, G: g, Buf: buf}})
}

// StepSGDAll is StepSGD for many parameters: on a GPU one launch does 48 of them (torch's fused SGD). No two updates
// may share memory. If one can't be done none is.
func (rt *Runtime) StepSGDAll(ctx context.Context, updates []SGDUpdate) error {
	return rt.step(ctx, backend.SGDStep, "StepSGD", len(updates), func(i int, to *update) error {
		u := &updates[i]
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("%w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		to.step, to.p, to.g = &u.SGDStep, u.P, u.G
		if u.Momentum != 0 { // else the buffer is left alone, as PyTorch does
			to.state[0] = u.Buf
		}
		if next, buffered := u.Next, u.Momentum != 0; next != nil && rt.Capturing() != nil {
			s := u.SGDStep
			to.next = func() (stepper, error) {
				s = next()
				return &s, sameBuffer("SGD", s.Momentum, buffered)
			}
		}
		return nil
	})
}

func (s *SGDStep) shared(n *kernel.Numbers) {
	*kernel.NumbersOf[kernel.SGDShared](&n[0]) = kernel.SGDShared{Keep: 1 - s.Dampening, Decay: s.WeightDecay, Sign: sign(s.Maximize), Nesterov: asNumber(s.Nesterov)}
}

func (s *SGDStep) own(first *float64) {
	*kernel.NumbersOf[kernel.SGDOwn](first) = kernel.SGDOwn{Rate: s.LR, Momentum: s.Momentum, First: asNumber(s.First)}
}

// AdamStep is one step of torch.optim.Adam, or AdamW if the decay is decoupled.
type AdamStep struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Decoupled                          bool
	Step                               int  // counts from 1
	Maximize                           bool // the step goes up the gradient
}

// AdamUpdate is the step of one parameter. Greatest is nil, or holds the greatest second moments until now, which take the place of
// the present ones (amsgrad). In a capture Next gives the step of each replay, whose LR, Beta1 and Step count; nil: it is the same each time.
type AdamUpdate struct {
	AdamStep
	P, G, M, V *Tensor
	Greatest   *Tensor
	Next       func() AdamStep
}

// StepAdam updates the parameters p and the moments m and v in place with the gradients g, in one pass over
// the memory. All have one shape.
func (rt *Runtime) StepAdam(ctx context.Context, s AdamStep, p, g, m, v *Tensor) error {
	return rt.StepAdamAll(ctx, []AdamUpdate{{AdamStep: s, P: p, G: g, M: m, V: v}})
}

// StepAdamAll is StepAdam for many parameters: on a GPU one launch does 48 of them (torch's fused Adam). No two
// updates may share memory. If one can't be done none is.
func (rt *Runtime) StepAdamAll(ctx context.Context, updates []AdamUpdate) error {
	return rt.step(ctx, backend.AdamStep, "StepAdam", len(updates), func(i int, to *update) error {
		u := &updates[i]
		if u.Step < 1 {
			return fmt.Errorf("%w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		to.step, to.p, to.g, to.state = &u.AdamStep, u.P, u.G, [3]*Tensor{u.M, u.V, u.Greatest}
		if next := u.Next; next != nil && rt.Capturing() != nil {
			s := u.AdamStep
			to.next = func() (stepper, error) { s = next(); return &s, nil }
		}
		return nil
	})
}

func (s *AdamStep) shared(n *kernel.Numbers) {
	k := kernel.AdamShared{Beta2: s.Beta2, C2: 1 - s.Beta2, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
	if s.Decoupled {
		k.Decay = 0
	}
	*kernel.NumbersOf[kernel.AdamShared](&n[0]) = k
}

func (s *AdamStep) own(first *float64) {
	t := float64(s.Step)
	k := kernel.AdamOwn{Size: s.LR / (1 - math.Pow(s.Beta1, t)), Correction: math.Sqrt(1 - math.Pow(s.Beta2, t)), Shrink: 1, C1: 1 - s.Beta1}
	if s.Decoupled {
		k.Shrink = 1 - s.LR*s.WeightDecay
	}
	*kernel.NumbersOf[kernel.AdamOwn](first) = k
}
