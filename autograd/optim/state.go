package optim

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Slot describes a tensor that an optimiser keeps for each parameter of a group. It has the
// parameter's dtype and shape, or the shape of this rank's part if the parameter is sharded.
type Slot struct {
	Name     string  // PyTorch's name for checkpoints, such as "exp_avg"
	Fill     float64 // value of the elements before the first step
	Momentum bool    // used only while the group's momentum is not 0; must be the last slot
}

// Prepare allocates the state of all parameters that are not frozen.
func (s *Base) Prepare(ctx context.Context) error {
	if err := check.Context("optim: Prepare", ctx); err != nil {
		return err
	}
	if err := s.usable(); err != nil {
		return err
	}
	return s.prepare(ctx, s.choose(nil, func(p *autograd.Parameter) bool { return p.RequiresGrad() }))
}

// choose returns the indices of the wanted parameters in among, or in all parameters if among is
// nil. The list is valid until the next call.
func (s *Base) choose(among []int, wanted func(*autograd.Parameter) bool) []int {
	s.pending = s.pending[:0]
	if among != nil {
		for _, i := range among {
			if wanted(s.params[i].Parameter) {
				s.pending = append(s.pending, i)
			}
		}
		return s.pending
	}
	for i, p := range s.params {
		if wanted(p.Parameter) {
			s.pending = append(s.pending, i)
		}
	}
	return s.pending
}

// slots returns the slots of the i-th parameter, and how many of them it needs now.
func (s *Base) slots(i int) (all []Slot, needed int) {
	g := s.groups[s.of[i]]
	needed = len(g.slots)
	if needed > 0 && g.slots[needed-1].Momentum && g.momentum == 0 {
		needed--
	}
	return g.slots, needed
}

// prepare allocates the state of parameters.
func (s *Base) prepare(ctx context.Context, params []int) error {
	for _, i := range params {
		p, had := s.params[i], len(s.state[i])
		slots, needed := s.slots(i)
		if had >= needed {
			continue
		}
		if c := s.rt.Capturing(); c != nil {
			return fmt.Errorf("optim: state of parameter %q: %w", p.Name, c.Refuse(s.kind+" state", "it would begin anew at each replay: call Prepare, or take a step, before the capture"))
		}
		ctx := stateContext(ctx, p) // only here, because most steps allocate nothing
		for _, slot := range slots[min(had, needed):needed] {
			t, err := slot.first(ctx, s.rt, p.Parameter)
			if err != nil {
				for _, t := range s.state[i][had:] {
					err = errors.Join(err, t.ReleaseContext(ctx))
				}
				s.state[i] = s.state[i][:had]
				return fmt.Errorf("optim: state of parameter %q: %w", p.Name, err)
			}
			s.state[i] = append(s.state[i], t)
		}
		if err := s.park(ctx, []int{i}); err != nil {
			return fmt.Errorf("optim: %w", err)
		}
	}
	return nil
}

// stateContext returns the context for allocating a parameter's state: with the parameter's module,
// and outside of any lifetime.
func stateContext(ctx context.Context, p autograd.Named) context.Context {
	l := memcache.LabelOf(ctx)
	l.Category, l.Module = memcache.CategoryOptimizerState, names.Holder(l.Module, p.Name, p.Layer)
	return memcache.WithLabel(tensor.Detached(ctx), l)
}

// first allocates the slot's tensor of a parameter with its values before the first step.
func (s Slot) first(ctx context.Context, rt *tensor.Runtime, p *autograd.Parameter) (*tensor.Tensor, error) {
	shape := p.Value().Shape()
	if sh, ok := autograd.Attached[Sharded](p); ok && sh.StateShape() != nil {
		shape = sh.StateShape()
	}
	if s.Fill == 0 {
		return rt.Zeros(ctx, p.Value().Dtype(), shape...)
	}
	return rt.Full(ctx, s.Fill, p.Value().Dtype(), shape...)
}
