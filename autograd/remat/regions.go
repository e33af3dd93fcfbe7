package remat

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// regions are the checkpoints of a tape.
type regions struct {
	autograd.NoHooks
	*checkpoint     // the innermost running one, or nil
	results     int // the number of results made in checkpoints
}

// regionsOf returns the tape's regions.
func regionsOf(t *autograd.Tape) *regions {
	r, ok := autograd.Hooked[*regions](t)
	if !ok {
		r = new(regions)
		t.Hook(r)
	}
	return r
}

// Read records and holds the outside variables that an operation reads. A second run must read no
// others.
func (r *regions) Read(_ *autograd.Tape, _ string, vs []*autograd.Variable) error {
	for i, v := range vs {
		if r.strange(v) {
			return fmt.Errorf("%w: operand %d was not read by the checkpoint's first run: Go variables that its function reads must not be assigned to later; see Checkpoint", autograd.ErrInvalid, i+1)
		}
	}
	r.reads(vs)
	return nil
}

// Bring holds x until the function's second run, which reads x again. The holder is the outermost
// checkpoint that is in its first run.
func (r *regions) Bring(t *autograd.Tape, x *tensor.Tensor) {
	c := r.checkpoint
	if c == nil || c.again || x.Released() {
		return
	}
	for c.outer != nil && !c.outer.again {
		c = c.outer
	}
	held, err := t.Runtime().Share(t.Context(), x)
	if err != nil {
		t.Fail(fmt.Errorf("remat: Checkpoint: %w", err))
		return
	}
	c.own = append(c.own, held)
}

// Made counts and records a result.
func (r *regions) Made(_ *autograd.Tape, op string, v *autograd.Variable, pure bool) error {
	if r.checkpoint == nil {
		return nil
	}
	r.results++
	return r.made(op, v, r.results-1, pure)
}

// Needed records that the second run must compute v.
func (r *regions) Needed(v *autograd.Variable) { r.needs(v) }

// Unread returns the next result's dtype and shape in a second run, if nothing reads it.
func (r *regions) Unread(*autograd.Tape) (dtype tensor.Dtype, shape tensor.Shape, ok bool) {
	if u := r.runningAgain().unreadResult(r.results); u != nil {
		return u.dtype, u.shape, true
	}
	return 0, nil, false
}
