package optim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Loop is what [Minimize] and [InBackward] do, with the gradients of several losses, a bound on
// their norm, and a schedule:
//
//	loop := optim.Loop{Optimizer: adam, Accumulate: 4, ClipNorm: 1, Scheduler: schedule}
//	for i, tape := range in.Steps(4000) {
//		x, y := next(i)
//		loop.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
//	}
//
// A loop belongs to the optimiser's goroutine and owns nothing. Parts may change between steps.
type Loop struct {
	Optimizer Optimizer
	// Accumulate is how many losses make a step, whose gradients are those of their mean; 0: 1. The
	// ranks of a parallel.Parallel exchange the gradients of a step once, in the last backward
	// pass, so that each rank has whole gradients until then.
	Accumulate int
	// ClipNorm is the greatest norm of the optimiser's gradients together ([ClipGradNorm]); 0: any.
	ClipNorm float64
	// Scheduler steps after each step of the optimiser; nil: the rates stay.
	Scheduler *Scheduler

	at *passes
}

// passes are the backward passes since the last step, all of them in one capture or in none.
type passes struct {
	in   *tensor.Capture
	done int
}

// Minimize is [Minimize] for one of the Accumulate losses of a step: Backward, and with the last
// one the clip, the optimiser's Step, the Scheduler's, and ZeroGrad. The value of the loss stays
// until the tape is closed.
//
// An error sticks to the tape. After one of Backward the loss does not count, so that it may be
// computed again; after another one the gradients are gone, and the next step begins. A capture
// has whole steps: the Accumulate calls of each.
func (l *Loop) Minimize(t *autograd.Tape, loss *autograd.Variable) {
	l.pass(t, loss, func(loss *autograd.Variable) error {
		if err := backwardFor(t, loss, l.Optimizer); err != nil {
			return err
		}
		l.at.done = 0
		err := errors.Join(l.update(t.Context()), l.Optimizer.ZeroGrad(t.Context()))
		if err != nil {
			t.Fail(err)
		}
		return err
	})
}

// InBackward is [Loop.Minimize] that updates parameters in the backward pass of the last loss, as
// [InBackward] does in pieces of so many bytes. A ClipNorm is refused, as the norm is not known
// then.
func (l *Loop) InBackward(t *autograd.Tape, loss *autograd.Variable, piece int64) {
	if l.ClipNorm != 0 {
		t.Fail(fmt.Errorf("optim: Loop.InBackward: %w: ClipNorm is %v, and the norm is known at the end of the pass: want Minimize", autograd.ErrInvalid, l.ClipNorm))
	}
	l.pass(t, loss, func(loss *autograd.Variable) error {
		InBackward(t, loss, l.Optimizer, piece)
		return t.Err()
	})
}

// pass is one of the backward passes of a step; last is the last one and the step.
func (l *Loop) pass(t *autograd.Tape, loss *autograd.Variable, last func(*autograd.Variable) error) {
	if err := l.begin(t); err != nil {
		t.Fail(err)
		return
	}
	n := max(1, l.Accumulate)
	if n > 1 {
		loss = t.MulScalar(loss.Keep(), 1/float64(n))
	}
	if l.at.done+1 < n {
		if l.add(t, loss, shardsOf(t)) == nil {
			l.at.done++
		}
		return
	}
	if last(loss) != nil {
		return
	}
	l.at.done = 0
	if l.Scheduler != nil {
		if err := l.Scheduler.Step(); err != nil {
			t.Fail(err)
		}
	}
}

// add is a backward pass whose gradients stay on their ranks.
func (l *Loop) add(t *autograd.Tape, loss *autograd.Variable, of []Shards) error {
	if len(of) == 0 {
		return backwardFor(t, loss, l.Optimizer)
	}
	return of[0].NoSync(func() error { return l.add(t, loss, of[1:]) })
}

// update clips the gradients and takes the optimiser's step.
func (l *Loop) update(ctx context.Context) error {
	if l.ClipNorm != 0 {
		if err := ClipGradNorm(ctx, l.Optimizer.Core().params, l.ClipNorm); err != nil {
			return err
		}
	}
	return l.Optimizer.Step(ctx)
}

// begin checks the loop, and counts anew where a capture begins or has ended.
func (l *Loop) begin(t *autograd.Tape) error {
	if err := t.Err(); err != nil {
		return err
	}
	if _, err := CoreOf(l.Optimizer); err != nil {
		return fmt.Errorf("optim: Loop: %w", err)
	}
	if l.Accumulate < 0 {
		return fmt.Errorf("optim: Loop: %w: Accumulate is %d: want 0 or more losses", autograd.ErrInvalid, l.Accumulate)
	}
	c := t.Runtime().Capturing()
	switch {
	case l.at != nil && l.at.in == c:
		return nil
	case l.at != nil && l.at.in == nil && l.at.done > 0:
		return fmt.Errorf("optim: Loop: %w", c.Refuse("a part of a step", fmt.Sprintf("%d of its %d losses came before the capture: begin it between two steps", l.at.done, l.Accumulate)))
	}
	at := &passes{in: c}
	l.at = at
	if c == nil {
		return nil
	}
	return c.OnReplay(func() error {
		if at.done > 0 {
			return fmt.Errorf("optim: Loop: %w: the graph has %d of the %d losses of its last step: capture whole steps", autograd.ErrInvalid, at.done, l.Accumulate)
		}
		return nil
	})
}

// shardsOf are those of the parameters that the tape has read.
func shardsOf(t *autograd.Tape) (all []Shards) {
	for v := range t.Parameters() {
		if sh, ok := autograd.Attached[Sharded](v.Parameter()); ok && !slices.Contains(all, sh.Shards()) {
			all = append(all, sh.Shards())
		}
	}
	return all
}
