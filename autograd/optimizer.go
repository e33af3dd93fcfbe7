package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// Optimizer updates the parameters of one runtime in place from their gradients. Its state is device memory. It is not safe for
// concurrent use.
type Optimizer interface {
	// Prepare allocates the state, zeroed, so that the first step takes no more memory than the others.
	// Otherwise Step allocates it for the parameters that have a gradient. It is idempotent.
	Prepare(ctx context.Context) error
	// Step updates every parameter that has a gradient. If there is no memory for the state nothing is
	// updated.
	Step(ctx context.Context) error
	// ZeroGrad frees the gradients (zero_grad(set_to_none=True)). The spans of the frees have their parent in ctx.
	ZeroGrad(ctx context.Context) error
	// LR is the learning rate, and SetLR changes it for the steps to come.
	LR() float64
	SetLR(lr float64) error
	// Close frees the state. The parameters stay. It is idempotent. A Step after it starts anew, as the first one.
	Close() error
}

// optimizerState is the state of an optimiser: for every parameter its number of steps and n tensors of its shape.
type optimizerState struct {
	rt     *tensor.Runtime
	params Parameters
	lr     float64
	n      int
	steps  []int
	state  [][]*tensor.Tensor

	pending []int // of due
}

func newOptimizerState(op string, params Parameters, lr float64, n int) (optimizerState, error) {
	s := optimizerState{params: params, n: n, steps: make([]int, len(params)), state: make([][]*tensor.Tensor, len(params))}
	if len(params) == 0 {
		return s, fmt.Errorf("autograd: %s: %w: no parameters", op, ErrInvalid)
	}
	for i, p := range params {
		if p.Parameter == nil || p.value == nil {
			return s, fmt.Errorf("autograd: %s: parameter %q: %w", op, p.Name, p.unusable())
		}
		for _, q := range params[:i] {
			if p.Parameter == q.Parameter {
				return s, fmt.Errorf("autograd: %s: %w: parameters %q and %q are the same one", op, ErrInvalid, q.Name, p.Name)
			}
		}
		rt := p.value.Runtime()
		if s.rt != nil && rt != s.rt {
			return s, fmt.Errorf("autograd: %s: %w: parameters %q and %q live in two runtimes: make an optimiser for each", op, tensor.ErrRuntime, params[0].Name, p.Name)
		}
		s.rt = rt
	}
	if err := s.SetLR(lr); err != nil {
		return s, err
	}
	for _, p := range params {
		p.name = p.Name
	}
	return s, nil
}

// LR returns the learning rate.
func (s *optimizerState) LR() float64 { return s.lr }

// SetLR sets the learning rate, which is at least 0.
func (s *optimizerState) SetLR(lr float64) error {
	if err := within("SetLR", "the learning rate", lr, 0, math.MaxFloat64); err != nil {
		return err
	}
	s.lr = lr
	return nil
}

// ZeroGrad frees the gradients.
func (s *optimizerState) ZeroGrad(ctx context.Context) error { return s.params.ZeroGrad(ctx) }

// Close frees the state.
func (s *optimizerState) Close() error {
	var errs []error
	for i, ts := range s.state {
		for _, t := range ts {
			errs = append(errs, t.Release())
		}
		s.state[i], s.steps[i] = nil, 0
	}
	return errors.Join(errs...)
}

// Prepare allocates the state of all parameters.
func (s *optimizerState) Prepare(ctx context.Context) error {
	return s.prepare(ctx, func(*Parameter) bool { return true })
}

// prepare gives every parameter that needs it its tensors, of zeros.
func (s *optimizerState) prepare(ctx context.Context, needs func(*Parameter) bool) error {
	ctx = tensor.Detached(ctx)
	for i, p := range s.params {
		if len(s.state[i]) == s.n || !needs(p.Parameter) {
			continue
		}
		var ts []*tensor.Tensor
		for range s.n {
			t, err := s.rt.Zeros(ctx, p.value.Dtype(), p.value.Shape()...)
			if err != nil {
				for _, t := range ts {
					err = errors.Join(err, t.ReleaseContext(ctx))
				}
				return fmt.Errorf("autograd: state of parameter %q: %w", p.Name, err)
			}
			ts = append(ts, t)
		}
		s.state[i] = ts
	}
	return nil
}

// due returns the parameters that have a gradient, by number, and gives them their state.
func (s *optimizerState) due(ctx context.Context) ([]int, error) {
	if err := s.prepare(ctx, func(p *Parameter) bool { return p.grad != nil }); err != nil {
		return nil, err
	}
	s.pending = s.pending[:0]
	for i, p := range s.params {
		if p.grad != nil {
			s.pending = append(s.pending, i)
		}
	}
	return s.pending, nil
}

// stepped counts a step of each of the parameters.
func (s *optimizerState) stepped(due []int) {
	for _, i := range due {
		s.steps[i]++
	}
}

// valueOr is *p, or standard if p is nil.
func valueOr(p *float64, standard float64) float64 {
	if p == nil {
		return standard
	}
	return *p
}

func within(op, what string, v, lo, hi float64) error {
	if !(v >= lo && v <= hi) {
		return fmt.Errorf("autograd: %s: %w: %s is %v: want a number from %v to %v", op, ErrInvalid, what, v, lo, hi)
	}
	return nil
}
