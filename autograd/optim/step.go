package optim

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// Step updates every parameter that has a gradient and is not frozen. If the device refuses a
// launch, earlier launches may have updated parameters without counting the step: continue the
// training from a checkpoint then.
func (s *Base) Step(ctx context.Context) error { return s.StepOnly(ctx, nil) }

// StepOnly is Step for the parameters with these indices in [Base.Parameters], or for all if among
// is nil.
func (s *Base) StepOnly(ctx context.Context, among []int) (err error) {
	var due []int
	defer func() { err = s.endShards(due, err) }()
	if err := check.Context("optim: Step", ctx); err != nil {
		return err
	}
	if err := s.usable(); err != nil {
		return err
	}
	due = s.choose(among, func(p *autograd.Parameter) bool { return hasGrad(p) && p.RequiresGrad() })
	if err := s.prepare(ctx, due); err != nil || len(due) == 0 {
		return err
	}
	if s.stage != nil || s.staged(due) {
		return s.inPieces(ctx, due)
	}
	if err := s.stepPiece(ctx, due); err != nil {
		return fmt.Errorf("optim: %s step: %w", s.kind, err)
	}
	return nil
}

// stepPiece updates parameters that are due and on the device, with their state.
func (s *Base) stepPiece(ctx context.Context, piece []int) error {
	c := s.rt.Capturing()
	if c != nil {
		piece = slices.Clone(piece)
		s.guardReplays(c, piece)
	}
	s.updates = s.updates[:0]
	defer func() {
		for _, i := range piece {
			if sh, ok := autograd.Attached[Sharded](s.params[i].Parameter); ok {
				sh.EndPiece()
			}
		}
		clear(s.updates) // drops references to the gradients, which belong to the parameters
	}()
	for _, i := range piece {
		n := len(s.updates)
		s.updates = append(s.updates, Update{})
		if err := s.updates[n].fill(ctx, s, i); err != nil {
			return err
		}
		if s.updates[n].P == nil {
			s.updates = s.updates[:n]
		}
	}
	s.live = len(s.updates) == 0
	if err := s.update(ctx, s.updates); err != nil {
		return err
	}
	if c != nil {
		if !s.live {
			return c.Refuse(s.kind+" step", "every replay would use the learning rate and the step number of the capture: update with StepRule")
		}
		return c.OnReplay(func() error { s.count(piece); return nil })
	}
	s.count(piece)
	s.updated += len(piece)
	return nil
}

// count counts a step of the parameters in piece.
func (s *Base) count(piece []int) {
	for _, i := range piece {
		s.steps[i]++
		_, needed := s.slots(i)
		s.filled[i] = s.filled[i] || needed > 0
	}
}
