package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Group is a group of an optimiser's parameters that share options (torch.optim's param_groups).
// The constructor makes the first group; AddGroup adds others.
type Group struct {
	params autograd.Parameters
	rt     *tensor.Runtime
	slots  []Slot
	own    any
	lr     float64

	// Schedules may cycle momentum besides the learning rate: the momentum of SGD and RMSprop, or
	// Adam's beta1.
	momentum float64
	cycled   bool    // the optimiser has a momentum
	greatest float64 // limit of momentum
}

// Options are the options of a group of parameters.
type Options struct {
	LR float64
	// Momentum is the value that schedules may cycle besides the learning rate: the momentum, or
	// Adam's beta1. nil is none. MaxMomentum is its limit; 0 is no limit.
	Momentum    *float64
	MaxMomentum float64
	State       []Slot
	Own         any // other data of the optimiser; see [Group.Own]
}

// Own returns [Options.Own].
func (g *Group) Own() any { return g.own }

// Parameters returns the group's parameters.
func (g *Group) Parameters() autograd.Parameters { return g.params }

// LR returns the group's learning rate.
func (g *Group) LR() float64 { return g.lr }

// SetLR sets the learning rate of later steps. It must be at least 0. In a capture it is set at
// each replay.
func (g *Group) SetLR(lr float64) error {
	if err := checkLR(lr); err != nil {
		return err
	}
	return atReplays(g.rt, func() { g.lr = lr })
}

// Momentum returns the group's momentum, or Adam's beta1. ok is false if its optimiser has none.
func (g *Group) Momentum() (momentum float64, ok bool) { return g.momentum, g.cycled }

// SetMomentum sets the momentum of later steps. It is an error for an optimiser without one. In a
// capture it is set at each replay.
func (g *Group) SetMomentum(momentum float64) error {
	if err := g.checkMomentum(momentum); err != nil {
		return err
	}
	return atReplays(g.rt, func() { g.momentum = momentum })
}

func (g *Group) checkMomentum(momentum float64) error {
	if !g.cycled {
		return fmt.Errorf("optim: SetMomentum: %w: the optimiser has no momentum and no betas", autograd.ErrInvalid)
	}
	return within("SetMomentum", "the momentum", momentum, 0, g.greatest)
}

// Groups returns the groups of parameters in the order in which they were added.
func (s *Base) Groups() []*Group { return s.groups }

// AddGroup adds parameters that are in no other group, with options of their own. After an error
// the optimiser is unchanged.
func (s *Base) AddGroup(params autograd.Parameters, o Options) error {
	return s.addGroup("AddGroup", params, o)
}

func (s *Base) addGroup(op string, params autograd.Parameters, o Options) error {
	if err := s.usable(); err != nil {
		return err
	}
	g := Group{slots: o.State, own: o.Own, lr: o.LR, momentum: check.Or(o.Momentum, 0), cycled: o.Momentum != nil, greatest: o.MaxMomentum}
	if g.greatest == 0 {
		g.greatest = math.MaxFloat64
	}
	if err := errors.Join(
		within(op, "LR", g.lr, 0, math.MaxFloat64),
		within(op, "MaxMomentum", o.MaxMomentum, 0, math.MaxFloat64),
		within(op, "Momentum", g.momentum, 0, g.greatest)); err != nil {
		return err
	}
	if err := o.checkSlots(); err != nil {
		return fmt.Errorf("optim: %s: %w: %w", op, autograd.ErrInvalid, err)
	}
	if len(params) == 0 {
		return fmt.Errorf("optim: %s: %w: no parameters", op, autograd.ErrInvalid)
	}
	known := make(map[*autograd.Parameter]string, len(params))
	rt, first := s.rt, params[0].Name
	if rt != nil {
		first = s.params[0].Name
	}
	for _, p := range params {
		if p.Parameter == nil || p.Value() == nil {
			return fmt.Errorf("optim: %s: parameter %q: %w", op, p.Name, p.Err())
		}
		name, ok := known[p.Parameter]
		if i, in := s.number[p.Parameter]; in {
			name, ok = s.params[i].Name, true
		}
		if ok {
			return fmt.Errorf("optim: %s: %w: parameters %q and %q are the same one", op, autograd.ErrInvalid, name, p.Name)
		}
		known[p.Parameter] = p.Name
		if rt != nil && rt != p.Value().Runtime() {
			return fmt.Errorf("optim: %s: %w: parameters %q and %q live in two runtimes: make an optimiser for each", op, tensor.ErrRuntime, first, p.Name)
		}
		rt = p.Value().Runtime()
	}
	g.params, g.rt, s.rt = params, rt, rt
	s.groups = append(s.groups, &g)
	for _, p := range params {
		if err := p.SetName(); err != nil {
			return fmt.Errorf("optim: %s: parameter %q: %w", op, p.Name, err)
		}
		if s.number == nil {
			s.number = make(map[*autograd.Parameter]int, len(params))
		}
		s.number[p.Parameter] = len(s.params)
		s.params, s.of = append(s.params, p), append(s.of, len(s.groups)-1)
		s.steps, s.filled, s.state = append(s.steps, 0), append(s.filled, false), append(s.state, nil)
	}
	return nil
}

// checkSlots refuses slots without distinct names, and a momentum slot that is not the last one.
func (o Options) checkSlots() error {
	for i, slot := range o.State {
		switch {
		case slot.Name == "":
			return fmt.Errorf("slot %d of %d has no name", i+1, len(o.State))
		case slices.ContainsFunc(o.State[:i], func(s Slot) bool { return s.Name == slot.Name }):
			return fmt.Errorf("two slots are %q", slot.Name)
		case slot.Momentum && (o.Momentum == nil || i != len(o.State)-1):
			return fmt.Errorf("slot %q needs a momentum, and must be the last one", slot.Name)
		}
	}
	return nil
}

// below1 is the greatest valid decay factor of a running mean.
var below1 = math.Nextafter(1, 0)
