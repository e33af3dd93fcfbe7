package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// An optimiser that steps in the backward pass updates a parameter when its gradient is final and
// the step that gave it has run: no later step has saved the parameter. Other tensors may share the
// parameter's memory, such as views and Inputs of it. Such a parameter is updated at the end of the
// pass, as Minimize does it.

// DefaultBackwardPiece is how many bytes of gradients [Tape.MinimizeInBackward] gathers for one
// update, unless it is told.
const DefaultBackwardPiece = 32 << 20

// MinimizeInBackward is [Tape.Minimize] that updates parameters in the backward pass and frees
// their gradients there, so that a step never holds all gradients (an optimiser step fused into the
// backward pass by register_post_accumulate_grad_hook; LOMO: Lv et al., 2023). Parameters whose
// gradients are final, and whose values nothing reads any more, are gathered until their gradients
// have piece bytes, 0 for [DefaultBackwardPiece], and updated together. Numbers are the same to the
// bit.
//
// Nothing can be done with gradients before the update: [Parameters.ClipGradNorm] and ClipGradValue
// need Backward, Step and ZeroGrad one by one. The parameters of a [Parallel] are refused.
// Gradients that earlier tapes have left are added to, and used up. A weight that is used more than
// once, as tied ones are, is updated after its last gradient; a parameter whose memory another
// tensor shares ([tensor.Runtime.Share], an Input of it that is kept), at the end of the pass. What
// a backward function of [Tape.Func] reads of a parameter it must have saved, and the function of a
// [Tape.Checkpoint] must have brought to the tape.
//
// An error sticks to the tape. If the pass had begun it says how many parameters have been updated:
// these have a step more and no gradient, and the others are as after an error of Minimize. A
// training goes on from a checkpoint then, as a batch that is taken again would update the former
// twice. Prepare lets the first step take no more memory than others. The optimiser is of the
// tape's runtime, and embeds no other one: its own Step would not run. Gradients of other
// parameters are as Minimize leaves them.
func (t *Tape) MinimizeInBackward(loss *Variable, opt Optimizer, piece int64) {
	if t.Runtime() == nil {
		return
	}
	s, err := t.stepInBackward(opt, piece)
	if err != nil {
		t.Fail(fmt.Errorf("autograd: MinimizeInBackward: %w", err))
	} else {
		t.Hook(s)
		defer t.Unhook(s)
	}
	if err := t.backwardFor(loss, opt); err != nil {
		return
	}
	// What is left are the parameters of the optimiser that no step of the pass has updated.
	if err := errors.Join(s.opt.Step(t.Context()), s.opt.ZeroGrad(t.Context())); err != nil {
		t.Fail(s.failed(err))
	}
}

// inBackward is an optimiser that steps in the backward pass of a tape.
type inBackward struct {
	NoHooks
	opt   *Base
	ctx   context.Context // of the root module
	piece int64           // bytes of gradients
	bytes int64           // of those that are ready
	due   int             // parameters that may be updated
	final []*Variable     // with final gradients; the step that runs may still read them
	ready []*Variable     // to be updated
	among []int           // the numbers of these, with the optimiser
	begun bool
}

// stepInBackward returns the hook of opt, or an error if opt can't step in the backward pass.
func (t *Tape) stepInBackward(opt Optimizer, piece int64) (*inBackward, error) {
	state, err := CoreOf(opt)
	switch {
	case err != nil:
		return nil, err
	case state.self != opt:
		return nil, fmt.Errorf("%w: the optimiser is a %T, which embeds another one: its own Step would not run: want Minimize", ErrInvalid, opt)
	case piece < 0:
		return nil, fmt.Errorf("%w: pieces of %d bytes: want 0 or more", ErrInvalid, piece)
	}
	if state.rt != nil && state.rt != t.Runtime() {
		return nil, fmt.Errorf("%w: the optimiser's parameters are of another runtime than the tape", tensor.ErrRuntime)
	}
	if i := slices.IndexFunc(state.params, func(p Named) bool { return isSharded(p.Parameter) }); i >= 0 {
		return nil, fmt.Errorf("%w: parameter %q is of a Parallel, whose ranks have its gradient at the end of the pass: want Minimize", ErrInvalid, state.params[i].Name)
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
func (s *inBackward) Begin(t *Tape) error {
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
func (s *inBackward) Final(t *Tape, v *Variable) error {
	if _, ok := s.opt.number[v.Parameter()]; ok && v.Parameter().RequiresGrad() {
		s.final = append(s.final, v)
	}
	return nil
}

// Load moves collected parameters to ready, and updates these when their gradients have the size of
// a piece.
func (s *inBackward) Load(t *Tape, _ *Node, _ int) error {
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
func (s *inBackward) End(t *Tape, err error) error {
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
	return fmt.Errorf("autograd: MinimizeInBackward: %d of %d parameters updated: %w", s.opt.updated, s.due, err)
}

// update updates the ready parameters in the root module, as Minimize does, and frees their
// gradients.
func (s *inBackward) update(t *Tape) (err error) {
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
