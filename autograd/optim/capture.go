package optim

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// A captured step ([tensor.Runtime.Capture]) runs at each replay on the memory of the capture.
// Before each replay Go code sets the numbers of its step and counts it.

// guardReplays makes replays fail if the parameters or their state are not those of the capture.
func (s *Base) guardReplays(c *tensor.Capture, piece []int) {
	type held struct {
		value *tensor.Tensor
		state []*tensor.Tensor
	}
	was := make([]held, len(piece))
	for k, i := range piece {
		was[k] = held{s.params[i].Value(), slices.Clone(s.state[i])}
	}
	_ = c.OnReplay(func() error {
		for k, i := range piece {
			switch p := s.params[i]; {
			case !p.RequiresGrad():
				return fmt.Errorf("optim: %s step: %w: parameter %q was frozen after the capture: capture the step anew", s.kind, autograd.ErrInvalid, p.Name)
			case p.Value() != was[k].value || !slices.Equal(s.state[i], was[k].state):
				return fmt.Errorf("optim: %s step: %w: parameter %q or its state is not the same as in the capture: capture the step anew", s.kind, autograd.ErrInvalid, p.Name)
			}
		}
		return nil
	})
}
