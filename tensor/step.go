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

// sgdUpdate is an SGDUpdate that was checked.
type sgdUpdate struct {
	SGDStep
	p, g, buf *Tensor
	live      liveRow
}

// StepSGDAll is StepSGD for many parameters: on a GPU one launch does 48 of them (torch's fused SGD). No two updates
// may share memory. If one can't be done none is.
func (rt *Runtime) StepSGDAll(ctx context.Context, updates []SGDUpdate) error {
	room := takeStep[sgdUpdate](&sgdSteps)
	defer room.give(&sgdSteps)
	for _, u := range updates {
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("tensor: StepSGD: %w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		if u.Momentum == 0 {
			u.Buf = nil // as PyTorch, which leaves it alone
		}
		if err := room.held.acquire(rt, "StepSGD", present(append(room.operands[:0], u.P, u.G), u.Buf)...); err != nil {
			return err
		}
		room.all = append(room.all, sgdUpdate{SGDStep: u.SGDStep, p: u.P, g: u.G, buf: u.Buf})
	}
	if c := rt.capturing.Load(); c != nil {
		if err := liveSGD(ctx, c, updates, room.all); err != nil {
			return err
		}
	}
	for _, u := range room.all {
		overwritten(u.p, u.buf)
	}
	return rt.kernels.sgd(room.all)
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

// adamUpdate is an AdamUpdate that was checked.
type adamUpdate struct {
	kernel.Adam
	p, g, m, v, greatest *Tensor
	live                 liveRow
}

// StepAdamAll is StepAdam for many parameters: on a GPU one launch does 48 of them (torch's fused Adam). No two
// updates may share memory. If one can't be done none is.
func (rt *Runtime) StepAdamAll(ctx context.Context, updates []AdamUpdate) error {
	room := takeStep[adamUpdate](&adamSteps)
	defer room.give(&adamSteps)
	for _, u := range updates {
		if u.Step < 1 {
			return fmt.Errorf("tensor: StepAdam: %w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		if err := room.held.acquire(rt, "StepAdam", present(append(room.operands[:0], u.P, u.G, u.M, u.V), u.Greatest)...); err != nil {
			return err
		}
		room.all = append(room.all, adamUpdate{Adam: u.kernel(), p: u.P, g: u.G, m: u.M, v: u.V, greatest: u.Greatest})
	}
	if c := rt.capturing.Load(); c != nil {
		if err := liveAdam(ctx, c, updates, room.all); err != nil {
			return err
		}
	}
	for _, u := range room.all {
		overwritten(u.p, u.m, u.v, u.greatest)
	}
	return rt.kernels.adam(room.all)
}

func (s AdamStep) kernel() kernel.Adam {
	t := float64(s.Step)
	return kernel.Adam{
		LR: s.LR, WeightDecay: s.WeightDecay, Decoupled: s.Decoupled, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps,
		StepSize:   s.LR / (1 - math.Pow(s.Beta1, t)),
		Correction: math.Sqrt(1 - math.Pow(s.Beta2, t)), Maximize: s.Maximize,
	}
}

// overwritten counts a write in place to each of the tensors that are there.
func overwritten(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil {
			t.overwritten()
		}
	}
}

// stepOperands are the operands of many updates, held until one launch is queued for all.
type stepOperands []operands

func (all *stepOperands) release() {
	for i := range *all {
		(*all)[i].release()
	}
}

func (all *stepOperands) acquire(rt *Runtime, op string, ts ...*Tensor) error {
	in, err := rt.acquireStep(op, ts...)
	if err == nil {
		*all = append(*all, in)
	}
	return err
}

func (rt *Runtime) acquireStep(op string, ts ...*Tensor) (operands, error) {
	in, err := rt.acquire(op, ts...)
	if err != nil {
		return in, err
	}
	alike := ts
	if len(ts) > 1 && ts[0].dtype == Float32 && ts[1].dtype == BFloat16 { // a gradient
		alike = append(ts[:1:1], ts[2:]...)
	}
	if err := wantFloats(op, alike...); err != nil {
		in.release()
		return operands{}, err
	}
	for i, t := range ts {
		for _, u := range ts[:i] {
			if err := sameShape(op, u, t); err != nil {
				in.release()
				return operands{}, err
			}
			if u.shares(t) {
				in.release()
				return operands{}, overlapError(op)
			}
		}
	}
	return in, nil
}
