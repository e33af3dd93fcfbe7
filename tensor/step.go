package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
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
	steps := takeSteps[plan.SGD](&sgdSteps)
	defer steps.give(&sgdSteps)
	for i := range updates {
		u := &updates[i]
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("tensor: StepSGD: %w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		buf := u.Buf
		if u.Momentum == 0 {
			buf = nil // as PyTorch, which leaves it alone
		}
		if err := steps.add(rt, "StepSGD", u.shared(), u.P, u.G, buf); err != nil {
			return err
		}
		u.own(steps.row(plan.SGDWidth))
		if next := u.Next; next != nil && rt.capturing.Load() != nil {
			steps.next(i, func(to []float64) error {
				s := next()
				s.own(to)
				return sameBuffer("SGD", s.Momentum, buf != nil)
			})
		}
	}
	return steps.queue(ctx, rt, backend.SGDStep)
}

func (s *SGDStep) shared() plan.SGD {
	return plan.SGD{Keep: 1 - s.Dampening, Decay: s.WeightDecay, Sign: sign(s.Maximize), Nesterov: s.Nesterov}
}

func (s *SGDStep) own(to []float64) {
	to[plan.SGDRate], to[plan.SGDMomentum], to[plan.SGDFirst] = s.LR, s.Momentum, 0
	if s.First {
		to[plan.SGDFirst] = 1
	}
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
	steps := takeSteps[plan.Adam](&adamSteps)
	defer steps.give(&adamSteps)
	for i := range updates {
		u := &updates[i]
		if u.Step < 1 {
			return fmt.Errorf("tensor: StepAdam: %w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		if err := steps.add(rt, "StepAdam", u.shared(), u.P, u.G, u.M, u.V, u.Greatest); err != nil {
			return err
		}
		u.own(steps.row(plan.AdamWidth))
		if next := u.Next; next != nil && rt.capturing.Load() != nil {
			steps.next(i, func(to []float64) error {
				s := next()
				s.own(to)
				return nil
			})
		}
	}
	return steps.queue(ctx, rt, backend.AdamStep)
}

func (s *AdamStep) shared() plan.Adam {
	k := plan.Adam{Beta2: s.Beta2, C2: 1 - s.Beta2, Eps: s.Eps, Decay: s.WeightDecay, Sign: sign(s.Maximize)}
	if s.Decoupled {
		k.Decay = 0
	}
	return k
}

func (s *AdamStep) own(to []float64) {
	t := float64(s.Step)
	to[plan.AdamSize] = s.LR / (1 - math.Pow(s.Beta1, t))
	to[plan.AdamCorrection] = math.Sqrt(1 - math.Pow(s.Beta2, t))
	to[plan.AdamC1] = 1 - s.Beta1
	to[plan.AdamShrink] = 1
	if s.Decoupled {
		to[plan.AdamShrink] = 1 - s.LR*s.WeightDecay
	}
}
