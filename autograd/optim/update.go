package optim

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Update is what a step does to one parameter. Its tensors belong to the optimiser's [Base].
type Update struct {
	// P is the parameter, which the update overwrites, and G its gradient. Where the parameter is
	// sharded, both are this rank's part. The gradient of a float32 parameter may have 16 bits.
	P, G *tensor.Tensor
	// State is the tensors of the group's slots, in their order. The update overwrites them.
	State []*tensor.Tensor

	Group        *Group
	LR, Momentum float64 // the group's
	Step         int     // counts the parameter's steps from 1
	First        bool    // no step has written the state

	base  *Base
	index int // of the parameter
}

// fill makes u the update of the i-th parameter. P is nil if this rank has no element of it.
func (u *Update) fill(ctx context.Context, s *Base, i int) (err error) {
	p := s.params[i].Parameter
	u.P, u.G, u.State, u.base, u.index = p.Value(), p.Grad(), s.state[i], s, i
	u.now()
	if sh, ok := autograd.Attached[Sharded](p); ok {
		u.P, u.G, err = sh.Operands(tensor.Detached(ctx))
	}
	return err
}

// now sets the numbers of the next step.
func (u *Update) now() {
	s, i := u.base, u.index
	u.Group = s.groups[s.of[i]]
	u.LR, u.Momentum, u.Step, u.First = u.Group.lr, u.Group.momentum, s.steps[i]+1, !s.filled[i]
}

// tensors are the first three of the state, as [tensor.Update] has them.
func (u *Update) tensors() (state [3]*tensor.Tensor) {
	copy(state[:], u.State)
	return state
}

// StepRule is an update of [Base.Init] with a rule of package tensor. rule returns the numbers of an
// update, and its state in the order that the rule documents. In a captured step, each replay calls
// rule again, with the numbers of that step.
func StepRule[R tensor.Rule](ctx context.Context, us []Update, rule func(u *Update) (R, [3]*tensor.Tensor)) error {
	if len(us) == 0 {
		return nil
	}
	if us[0].base == nil || rule == nil {
		return fmt.Errorf("%w: StepRule: the updates are not of a Base, or the rule is nil", autograd.ErrInvalid)
	}
	s := us[0].base
	rows, ok := s.rows.(*[]tensor.Update[R])
	if !ok {
		rows = new([]tensor.Update[R])
		s.rows = rows
	}
	*rows = (*rows)[:0]
	defer func() { clear(*rows) }()
	for i := range us {
		u := &us[i]
		*rows = append(*rows, tensor.Update[R]{P: u.P, G: u.G})
		row := &(*rows)[i]
		row.Rule, row.State = rule(u)
		if s.rt.Capturing() != nil {
			later := Update{State: u.State, base: s, index: u.index}
			row.Next = func() R {
				later.now()
				r, _ := rule(&later)
				return r
			}
		}
	}
	s.live = true
	return tensor.Step(ctx, s.rt, *rows)
}
