package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// How an optimiser steps while the backward pass runs. A gradient is final when the backward steps of all recorded operations that read the parameter have
// run, which is counted as for a Parallel (parallel_pass.go), and by then none that is to come has saved the parameter itself. Its memory may have other tensors:
// views, a Detach, an Input of it, a gradient that is one of these. As long as there is one the parameter waits for the end of the pass. What is not there but comes
// again is what the function of a checkpoint brings to the tape, which is noted by its memory. All that waits is updated as Minimize does it.

// DefaultBackwardPiece is how many bytes of gradients [Tape.MinimizeInBackward] gathers for one update, unless it is told.
const DefaultBackwardPiece = 32 << 20

// MinimizeInBackward is [Tape.Minimize] that updates parameters in the backward pass and frees their gradients there, so that a step never holds
// all gradients (an optimiser step fused into the backward pass by register_post_accumulate_grad_hook; LOMO: Lv et al., 2023). Parameters whose gradients are final, and whose values
// nothing reads any more, are gathered until their gradients have piece bytes, 0 for [DefaultBackwardPiece], and updated together. Numbers are the same to the bit.
//
// Nothing can be done with gradients before the update: [Parameters.ClipGradNorm] and ClipGradValue need Backward, Step and ZeroGrad one by one. The parameters of a [Parallel] are refused. Gradients
// that earlier tapes have left are added to, and used up. A weight that is used more than once, as tied ones are, is updated after its last gradient; a parameter whose memory another
// tensor shares ([tensor.Runtime.Share], an Input of it that is kept), at the end of the pass. What a backward function of [Tape.Func] reads of a parameter it must have saved, and the function
// of a [Tape.Checkpoint] must have brought to the tape.
//
// An error sticks to the tape. If the pass had begun it says how many parameters have been updated: these have a step more and no gradient, and the others are as after an error
// of Minimize. A training goes on from a checkpoint then, as a batch that is taken again would update the former twice. Prepare lets the first step take no more memory than
// others. The optimiser is one of this package, of the tape's runtime.
// Gradients of other parameters are as Minimize leaves them.
func (t *Tape) MinimizeInBackward(loss *Variable, opt Optimizer, piece int64) {
	if t.none() {
		return
	}
	t.fail("MinimizeInBackward", t.stepInBackward(opt, piece))
	err := t.backwardFor(loss, opt)
	s := t.stepping
	t.stepping = inBackward{}
	if !s.begun {
		return
	}
	if err == nil {
		err = errors.Join(s.opt.Step(t.ctx), s.opt.ZeroGrad(t.ctx)) // of what has waited
	}
	if err != nil {
		t.err = fmt.Errorf("autograd: MinimizeInBackward: %d of %d parameters updated: %w", s.opt.all().updated, s.due, err)
	}
}

// inBackward is an optimiser that steps in the backward pass of a tape.
type inBackward struct {
	opt   stepper // nil: none does
	piece int64   // bytes of gradients
	bytes int64   // of those that are ready
	due   int     // parameters that may be updated
	begun bool
}

// stepper is an optimiser of this package.
type stepper interface {
	Optimizer
	all() *optimizerState
	stepAmong(ctx context.Context, among []int) error
}

// stepperOf is opt itself: what embeds an optimiser has a Step of its own, perhaps.
func stepperOf(opt Optimizer) (s stepper, ok bool) {
	switch o := opt.(type) {
	case *SGD:
		return o, o != nil
	case *Adam:
		return o, o != nil
	case *RMSprop:
		return o, o != nil
	case *Adagrad:
		return o, o != nil
	}
	return nil, false
}

// stepInBackward lets opt step in the backward pass, or is an error.
func (t *Tape) stepInBackward(opt Optimizer, piece int64) error {
	s, ok := stepperOf(opt)
	switch {
	case opt == nil:
		return fmt.Errorf("%w: the optimiser is nil", ErrInvalid)
	case !ok:
		return fmt.Errorf("%w: the optimiser is a %T: want one of this package that is not nil, or Minimize", ErrInvalid, opt)
	case piece < 0:
		return fmt.Errorf("%w: pieces of %d bytes: want 0 or more", ErrInvalid, piece)
	}
	state := s.all()
	if state.rt != nil && state.rt != t.rt {
		return fmt.Errorf("%w: the optimiser's parameters are of another runtime than the tape", tensor.ErrRuntime)
	}
	if i := slices.IndexFunc(state.params, func(p Named) bool { return p.replica != nil }); i >= 0 {
		return fmt.Errorf("%w: parameter %q is of a Parallel, whose ranks have its gradient at the end of the pass: want Minimize", ErrInvalid, state.params[i].Name)
	}
	if piece == 0 {
		piece = DefaultBackwardPiece
	}
	t.stepping = inBackward{opt: s, piece: piece}
	return nil
}

// beginSteps numbers the parameters that the optimiser may update in the pass that begins.
func (t *Tape) beginSteps() {
	s := &t.stepping
	if s.opt == nil {
		return
	}
	s.begun = true
	state := s.opt.all()
	state.updated = 0
	for i, p := range state.params {
		v := t.params[p.Parameter]
		used := v != nil && v.needsGrad
		if p.frozen || !used && p.grad == nil {
			continue
		}
		if s.due++; used {
			v.due = int32(i) + 1
		}
	}
}

// final notes a gradient that nothing is added to any more, if nothing to come reads the parameter, and updates what is ready when it is a piece.
func (t *Tape) final(v *Variable) {
	s, i := &t.stepping, v.due-1
	v.due = 0
	value := v.param.value
	if !value.Exclusive() || slices.Contains(t.foreign, tensor.MemoryOf(value)) {
		return
	}
	t.ready, t.numbers = append(t.ready, v), append(t.numbers, int(i))
	if s.bytes += v.grad.Bytes(); s.bytes >= s.piece {
		t.stepReady()
	}
}

// stepReady updates what is ready, in the module that Minimize does it in, and frees the gradients.
func (t *Tape) stepReady() {
	place := t.module
	t.setModule(t.modules[""])
	defer t.setModule(place)
	const op = "MinimizeInBackward"
	for _, v := range t.ready {
		if t.assign(v.param, v.grad); t.err == nil {
			v.grad = nil
		}
	}
	if t.err == nil {
		t.fail(op, t.stepping.opt.stepAmong(t.ctx, t.numbers))
	}
	for _, v := range t.ready {
		if v.grad == nil {
			t.fail(op, v.param.ZeroGrad(t.ctx))
		}
	}
	clear(t.ready)
	t.ready, t.numbers, t.stepping.bytes = t.ready[:0], t.numbers[:0], 0
}

// bring notes what the function of a checkpoint brings to the tape: the function that runs again will read it.
func (t *Tape) bring(x *tensor.Tensor) {
	if t.checkpoint != nil && !t.recomputing && x != nil {
		t.foreign = append(t.foreign, tensor.MemoryOf(x))
	}
}
