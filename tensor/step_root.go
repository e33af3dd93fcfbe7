package tensor

import (
	"context"
	"fmt"

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

// rmspropUpdate is an RMSpropUpdate that was checked.
type rmspropUpdate struct {
	kernel.RMSprop
	p, g, v, mean, buf *Tensor
	live               liveRow
}

// StepRMSpropAll updates parameters in place with their gradients and state, which all have the parameter's shape: on a GPU one launch
// does 48 of them. No two updates may share memory. If one can't be done none is.
func (rt *Runtime) StepRMSpropAll(ctx context.Context, updates []RMSpropUpdate) error {
	room := takeStep[rmspropUpdate](&rmspropSteps)
	defer room.give(&rmspropSteps)
	for _, u := range updates {
		if u.Buf == nil && u.Momentum != 0 {
			return fmt.Errorf("tensor: StepRMSprop: %w: momentum %v needs a buffer", ErrInvalid, u.Momentum)
		}
		if u.Momentum == 0 {
			u.Buf = nil // as PyTorch, which leaves it alone
		}
		if err := room.held.acquire(rt, "StepRMSprop", present(append(room.operands[:0], u.P, u.G, u.V), u.Mean, u.Buf)...); err != nil {
			return err
		}
		room.all = append(room.all, rmspropUpdate{RMSprop: kernel.RMSprop(u.RMSpropStep), p: u.P, g: u.G, v: u.V, mean: u.Mean, buf: u.Buf})
	}
	if c := rt.capturing.Load(); c != nil {
		if err := liveRMSprop(ctx, c, updates, room.all); err != nil {
			return err
		}
	}
	for _, u := range room.all {
		overwritten(u.p, u.v, u.mean, u.buf)
	}
	return rt.kernels.rmsprop(room.all)
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

// adagradUpdate is an AdagradUpdate that was checked.
type adagradUpdate struct {
	kernel.Adagrad
	p, g, sum *Tensor
	live      liveRow
}

// StepAdagradAll updates parameters in place as StepRMSpropAll does.
func (rt *Runtime) StepAdagradAll(ctx context.Context, updates []AdagradUpdate) error {
	room := takeStep[adagradUpdate](&adagradSteps)
	defer room.give(&adagradSteps)
	for _, u := range updates {
		if u.Step < 1 {
			return fmt.Errorf("tensor: StepAdagrad: %w: step %d: want at least 1", ErrInvalid, u.Step)
		}
		if err := room.held.acquire(rt, "StepAdagrad", u.P, u.G, u.Sum); err != nil {
			return err
		}
		k := kernel.Adagrad{Rate: u.rate(), WeightDecay: u.WeightDecay, Eps: u.Eps, Maximize: u.Maximize}
		room.all = append(room.all, adagradUpdate{Adagrad: k, p: u.P, g: u.G, sum: u.Sum})
	}
	if c := rt.capturing.Load(); c != nil {
		if err := liveAdagrad(ctx, c, updates, room.all); err != nil {
			return err
		}
	}
	for _, u := range room.all {
		overwritten(u.p, u.sum)
	}
	return rt.kernels.adagrad(room.all)
}

func (s AdagradStep) rate() float64 { return s.LR / (1 + float64(s.Step-1)*s.LRDecay) }
