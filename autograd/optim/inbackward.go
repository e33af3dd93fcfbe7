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
// the backward step that produced it has run, because no later step reads the parameter then. If
// other tensors share the parameter's memory, such as views and Inputs of it, the parameter is
// updated at the end of the pass, as by Minimize.

// DefaultBackwardPiece is how many bytes of gradients [InBackward] collects for one update if piece
// is 0.
const DefaultBackwardPiece = 32 << 20

// InBackward is [Minimize] with updates during the backward pass, which also frees the gradients
// there, so that a step never holds all gradients. (In PyTorch: an optimiser step fused into the
// backward pass with register_post_accumulate_grad_hook; LOMO: Lv et al., 2023.) It collects
// parameters when their gradients are final and no backward step reads their values any more. When
// their gradients have piece bytes, it updates them together; 0 is [DefaultBackwardPiece]. Results
// are bit-identical to Minimize's.
//
// Gradients can't be changed before the update: to use [ClipGradNorm] and [ClipGradValue], call
// Backward, Step and ZeroGrad separately. The parameters of a parallel.Parallel are refused.
// Gradients that earlier tapes have left are added to, used and freed. A weight that is used more
// than once, such as a tied one, is updated after its last gradient. A parameter whose memory
// another tensor shares ([tensor.Runtime.Share], or an Input of it that is kept) is updated at the
// end of the pass. If a backward function of [autograd.Tape.Func] reads a parameter, it must have
// saved it; if the function of a remat.Checkpoint reads one, it must have brought it to the tape.
//
// An error sticks to the tape. If the pass had begun, the error includes the number of updated
// parameters. These have one more step and no gradient; the others are as after an error of
// Minimize. Parameters of a piece of which the device refused a launch are not counted; see
// [Base.Step]. Continue the training from a checkpoint then, because repeating the batch would
// update some parameters twice. With Prepare the first step takes no more memory than later ones.
// The optimiser must be on the tape's runtime and must not embed another optimiser, because its own
// Step would not run. Gradients of other parameters are as Minimize leaves them.
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
	// This updates the optimiser's parameters that the pass has not updated.
	if err := errors.Join(s.opt.Step(t.Context()), s.opt.ZeroGrad(t.Context())); err != nil {
		t.Fail(s.failed(err))
	}
}

// inBackward is an optimiser that steps in the backward pass of a tape.
type inBackward struct {
	autograd.NoHooks
	opt   *Base
	ctx   context.Context      // of the root module, for spans
	piece int64                // bytes of gradients
	bytes int64                // bytes of the gradients in ready
	due   int                  // number of parameters that may be updated
	final []*autograd.Variable // with final gradients; the running step may still read them
	ready []*autograd.Variable // to be updated
	among []int                // their indices in the optimiser
	begun bool
}

// stepInBackward returns opt's hook for the tape, or an error if opt can't step in the backward
// pass.
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
		return nil, fmt.Errorf("%w: parameter %q belongs to a Parallel, whose ranks have its gradient only at the end of the pass: want Minimize", autograd.ErrInvalid, state.params[i].Name)
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

// Final collects v. It is not ready before the current step has run, which may still read the
// parameter.
func (s *inBackward) Final(t *autograd.Tape, v *autograd.Variable) error {
	if _, ok := s.opt.number[v.Parameter()]; ok && v.Parameter().RequiresGrad() {
		s.final = append(s.final, v)
	}
	return nil
}

// Load moves collected parameters to ready, and updates the ready ones when their gradients have
// the size of a piece.
func (s *inBackward) Load(t *autograd.Tape, _ *autograd.Node, _ int) error {
	for _, v := range s.final {
		p := v.Parameter()
		if !p.Value().Exclusive() {
			continue // updated at the end of the pass
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

// End is Load after the last step. It adds the number of updated parameters to an error of the
// pass.
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

// failed returns the error of a pass that has begun.
func (s *inBackward) failed(err error) error {
	return fmt.Errorf("optim: InBackward: %d of %d parameters updated: %w", s.opt.updated, s.due, err)
}

// update updates the ready parameters with the root module's context, as Minimize does, and frees
// their gradients.
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
