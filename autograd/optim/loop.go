package optim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Loop makes training steps like [Minimize] and [InBackward], and adds gradient accumulation over
// several losses, clipping, and a schedule:
//
//	loop := optim.Loop{Optimizer: adam, Accumulate: 4, ClipNorm: 1, Scheduler: schedule}
//	for i, tape := range in.Steps(4000) {
//		x, y := next(i)
//		loop.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
//	}
//
// A loop belongs to the optimiser's goroutine and owns nothing. Its fields may change between
// steps.
type Loop struct {
	Optimizer Optimizer
	// Accumulate is the number of losses in a step; 0 is 1. The step's gradients are those of the
	// losses' mean. The ranks of a parallel.Parallel exchange a step's gradients once, in the last
	// backward pass, so until then each rank holds whole gradients.
	Accumulate int
	// ClipNorm is the greatest joint norm of the optimiser's gradients ([ClipGradNorm]); 0 is no
	// limit.
	ClipNorm float64
	// Scheduler steps after each step of the optimiser. nil leaves the rates unchanged.
	Scheduler *Scheduler

	at *passes
}

// passes counts the backward passes since the last step, all in one capture or all outside of
// captures.
type passes struct {
	in   *tensor.Capture
	done int
}

// Minimize is [Minimize] for one of the Accumulate losses of a step. It calls Backward, and for the
// last loss also clips the gradients and calls the optimiser's Step and ZeroGrad, and the
// Scheduler's Step. If Accumulate is above 1, the value of the loss is kept until the tape is
// closed.
//
// An error sticks to the tape. After an error of Backward the loss does not count, so it may be
// computed again. After any other error the gradients are freed, and the next call begins a new
// step. A capture must contain whole steps, with all Accumulate calls of each.
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

// InBackward is [Loop.Minimize] with updates during the backward pass of the last loss, like
// [InBackward] with this piece in bytes. ClipNorm must be 0, because the norm is known only at the
// end of the pass.
func (l *Loop) InBackward(t *autograd.Tape, loss *autograd.Variable, piece int64) {
	if l.ClipNorm != 0 {
		t.Fail(fmt.Errorf("optim: Loop.InBackward: %w: ClipNorm is %v, and the norm is known at the end of the pass: want Minimize", autograd.ErrInvalid, l.ClipNorm))
	}
	l.pass(t, loss, func(loss *autograd.Variable) error {
		InBackward(t, loss, l.Optimizer, piece)
		return t.Err()
	})
}

// pass makes one of the backward passes of a step; last makes the last one and the step.
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

// add makes a backward pass whose gradients stay on their ranks.
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

// begin checks the loop, and restarts the count of passes if a capture has begun or ended.
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

// shardsOf returns the Shards of the parameters that the tape has read.
func shardsOf(t *autograd.Tape) (all []Shards) {
	for v := range t.Parameters() {
		if sh, ok := autograd.Attached[Sharded](v.Parameter()); ok && !slices.Contains(all, sh.Shards()) {
			all = append(all, sh.Shards())
		}
	}
	return all
}
