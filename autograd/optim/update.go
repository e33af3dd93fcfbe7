package optim

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Update describes a step's update of one parameter. Its tensors belong to the optimiser's [Base].
type Update struct {
	// P is the parameter's value, which the update overwrites, and G its gradient. If the parameter
	// is sharded, both are this rank's part. The gradient of a float32 parameter may have 16 bits.
	P, G *tensor.Tensor
	// State has the tensors of the group's slots in their order. The update overwrites them.
	State []*tensor.Tensor

	Group        *Group
	LR, Momentum float64 // the group's
	Step         int     // the number of the parameter's step, from 1
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

// now sets the group, the rates and the step number of the next step.
func (u *Update) now() {
	s, i := u.base, u.index
	u.Group = s.groups[s.of[i]]
	u.LR, u.Momentum, u.Step, u.First = u.Group.lr, u.Group.momentum, s.steps[i]+1, !s.filled[i]
}

// tensors returns the first three state tensors, in the form of [tensor.Update].
func (u *Update) tensors() (state [3]*tensor.Tensor) {
	copy(state[:], u.State)
	return state
}

// StepRule implements the update function of [Base.Init] with a rule of package tensor. rule
// returns the rule's values for an update, and its state in the order that the rule documents. In a
// captured step each replay calls rule again with the values of its own step.
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
