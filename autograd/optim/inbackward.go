package optim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// An optimiser that steps in the backward pass updates a parameter when its gradient is final and
// the step that gave it has run: no later step has saved the parameter. Other tensors may share the
// parameter's memory, such as views and Inputs of it. Such a parameter is updated at the end of the
// pass, as Minimize does it.

// DefaultBackwardPiece is how many bytes of gradients [InBackward] gathers for one
// update, unless it is told.
const DefaultBackwardPiece = 32 << 20

// InBackward is [Minimize] that updates parameters in the backward pass and frees
// their gradients there, so that a step never holds all gradients (an optimiser step fused into the
// backward pass by register_post_accumulate_grad_hook; LOMO: Lv et al., 2023). Parameters whose
// gradients are final, and whose values nothing reads any more, are gathered until their gradients
// have piece bytes, 0 for [DefaultBackwardPiece], and updated together. Numbers are
// bit-identical.
//
// Nothing can be done with gradients before the update: [ClipGradNorm] and [ClipGradValue] need
// Backward, Step and ZeroGrad one by one. The parameters of a parallel.Parallel are refused.
// Gradients that earlier tapes have left are added to, and used up. A weight that is used more than
// once, as tied ones are, is updated after its last gradient; a parameter whose memory another
// tensor shares ([tensor.Runtime.Share], an Input of it that is kept), at the end of the pass. What
// a backward function of [autograd.Tape.Func] reads of a parameter it must have saved, and the
// function of a remat.Checkpoint must have brought to the tape.
//
// An error sticks to the tape. If the pass had begun it says how many parameters have been updated:
// these have a step more and no gradient, and the others are as after an error of Minimize. Not
// counted are parameters of a piece of which the device has refused a launch; see [Base.Step]. A
// training goes on from a checkpoint then, as a batch that is taken again would update the former
// twice. Prepare lets the first step take no more memory than others. The optimiser is of the
// tape's runtime, and embeds no other one: its own Step would not run. Gradients of other
// parameters are as Minimize leaves them.
func InBackward(t *autograd.Tape, loss *autograd.Variable, opt Optimizer, piece int64) {
	if t.Runtime() == nil {
		return
	}
	s, err := stepInBackward(t, opt, piece)
	if err != nil {
		t.Fail(fmt.Errorf("optim: InBackward: %w", err))
	} else {
		t.Hook(s)
		defer t.Unhook(s)
	}
	if err := backwardFor(t, loss, opt); err != nil {
		return
	}
	// What is left are the parameters of the optimiser that no step of the pass has updated.
	if err := errors.Join(s.opt.Step(t.Context()), s.opt.ZeroGrad(t.Context())); err != nil {
		t.Fail(s.failed(err))
	}
}

// inBackward is an optimiser that steps in the backward pass of a tape.
type inBackward struct {
	autograd.NoHooks
	opt   *Base
	ctx   context.Context      // of the root module
	piece int64                // bytes of gradients
	bytes int64                // of those that are ready
	due   int                  // parameters that may be updated
	final []*autograd.Variable // with final gradients; the step that runs may still read them
	ready []*autograd.Variable // to be updated
	among []int                // the numbers of these, with the optimiser
	begun bool
}

// stepInBackward returns the hook of opt, or an error if opt can't step in the backward pass.
func stepInBackward(t *autograd.Tape, opt Optimizer, piece int64) (*inBackward, error) {
	state, err := CoreOf(opt)
	switch {
	case err != nil:
		return nil, err
	case state.self != opt:
		return nil, fmt.Errorf("%w: the optimiser is a %T, which embeds another one: its own Step would not run: want Minimize", autograd.ErrInvalid, opt)
	case piece < 0:
		return nil, fmt.Errorf("%w: pieces of %d bytes: want 0 or more", autograd.ErrInvalid, piece)
	}
	if state.rt != nil && state.rt != t.Runtime() {
		return nil, fmt.Errorf("%w: the optimiser's parameters are of another runtime than the tape", tensor.ErrRuntime)
	}
	if i := slices.IndexFunc(state.params, func(p autograd.Named) bool { return isSharded(p.Parameter) }); i >= 0 {
		return nil, fmt.Errorf("%w: parameter %q is of a Parallel, whose ranks have its gradient at the end of the pass: want Minimize", autograd.ErrInvalid, state.params[i].Name)
	}
	if piece == 0 {
		piece = DefaultBackwardPiece
	}
	s, ok := state.pass.(*inBackward)
	if !ok {
		s = new(inBackward)
		state.pass = s
	}
	*s = inBackward{opt: state, piece: piece, final: s.final[:0], ready: s.ready[:0], among: s.among[:0]}
	return s, nil
}

// Begin counts the parameters that the pass may update.
func (s *inBackward) Begin(t *autograd.Tape) error {
	s.begun = true
	s.ctx, s.opt.updated = t.Context(), 0
	for _, p := range s.opt.params {
		if p.RequiresGrad() && (t.Variable(p.Parameter).RequiresGrad() || p.Grad() != nil) {
			s.due++
		}
	}
	return nil
}

// Final collects v until the current step has run, which may still read the parameter.
func (s *inBackward) Final(t *autograd.Tape, v *autograd.Variable) error {
	if _, ok := s.opt.number[v.Parameter()]; ok && v.Parameter().RequiresGrad() {
		s.final = append(s.final, v)
	}
	return nil
}

// Load moves collected parameters to ready, and updates these when their gradients have the size of
// a piece.
func (s *inBackward) Load(t *autograd.Tape, _ *autograd.Node, _ int) error {
	for _, v := range s.final {
		p := v.Parameter()
		if !p.Value().Exclusive() {
			continue // it is updated at the end of the pass
		}
		s.ready, s.among = append(s.ready, v), append(s.among, s.opt.number[p])
		if s.bytes += v.Grad().Bytes(); s.bytes >= s.piece {
			if err := s.update(t); err != nil {
				return err
			}
		}
	}
	s.final = s.final[:0]
	return nil
}

// End is Load after the last step. An error of the pass says how many parameters were updated.
func (s *inBackward) End(t *autograd.Tape, err error) error {
	switch {
	case err == nil:
		err = s.Load(t, nil, 0)
	case s.begun:
		err = s.failed(err)
	}
	clear(s.final[:cap(s.final)])
	clear(s.ready[:cap(s.ready)])
	return err
}

// failed is an error of a pass that has begun.
func (s *inBackward) failed(err error) error {
	return fmt.Errorf("optim: InBackward: %d of %d parameters updated: %w", s.opt.updated, s.due, err)
}

// update updates the ready parameters in the root module, as Minimize does, and frees their
// gradients.
func (s *inBackward) update(t *autograd.Tape) (err error) {
	assigned := 0
	for _, v := range s.ready {
		if err = t.AssignGrad(v, false); err != nil {
			break
		}
		assigned++
	}
	if err == nil {
		err = s.opt.StepOnly(s.ctx, s.among)
	}
	for _, v := range s.ready[:assigned] {
		err = errors.Join(err, v.Parameter().ZeroGrad(s.ctx))
	}
	s.ready, s.among, s.bytes = s.ready[:0], s.among[:0], 0
	return err
}
