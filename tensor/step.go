package tensor

import (
	"context"
	"fmt"
)

// Rule is the algorithm by which an optimiser updates a parameter in one step.
type Rule interface {
	SGD | Adam | RMSprop | Adagrad | Lion
}

// Update is one parameter's step.
type Update[R Rule] struct {
	Rule R
	P, G *Tensor // the parameter, which is updated in place, and its gradient
	// State is the tensors that the rule keeps for the parameter, in the order of the rule's
	// documentation. The step updates them in place. All tensors have one shape and dtype, except
	// that the gradient of a float32 parameter may have 16 bits.
	State [3]*Tensor
	// Next returns the rule of each replay if the step is captured; nil: every replay uses Rule.
	// The rule's documentation lists the numbers that may change.
	Next func() R
}

// Step updates parameters; a GPU updates 48 of them in one launch (torch's fused optimisers). No
// two updates may share memory. If one update is refused, none is queued, unless the device refuses
// a launch after the first.
func Step[R Rule](ctx context.Context, rt *Runtime, updates []Update[R]) error {
	if rt == nil {
		return fmt.Errorf("tensor: Step: %w: the runtime is nil", ErrInvalid)
	}
	of := any((*R)(nil)).(stepper)
	return rt.step(ctx, of.op(), of.name(), len(updates), func(i int, to *update) error {
		u := &updates[i]
		to.step, to.p, to.g, to.state = any(&u.Rule).(stepper), u.P, u.G, u.State
		momentum, at := to.step.momentum()
		if at >= 0 && momentum == 0 {
			to.state[at] = nil
		}
		if momentum != 0 && to.state[at] == nil {
			return fmt.Errorf("%w: momentum %v needs a buffer", ErrInvalid, momentum)
		}
		if next := u.Next; next != nil && rt.Capturing() != nil {
			rule := new(R)
			to.next = func() (stepper, error) {
				*rule = next()
				s := any(rule).(stepper)
				m, _ := s.momentum()
				return s, sameBuffer(s.name(), m, momentum != 0)
			}
		}
		return to.step.check()
	})
}
