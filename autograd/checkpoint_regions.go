package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// regions are the checkpoints of a tape.
type regions struct {
	NoHooks
	*checkpoint     // that the program is in; nil: none
	results     int // that were made in checkpoints
}

// regionsOf are those of the tape.
func regionsOf(t *Tape) *regions {
	r, ok := Hooked[*regions](t)
	if !ok {
		r = new(regions)
		t.Hook(r)
	}
	return r
}

// Read notes what an operation reads from outside, and refuses what its checkpoint has not read before.
func (r *regions) Read(_ *Tape, _ string, vs []*Variable) error {
	for i, v := range vs {
		if r.strange(v) {
			return fmt.Errorf("%w: operand %d is none that the checkpoint read before: what its function reads must not be assigned to later; see Checkpoint", ErrInvalid, i+1)
		}
	}
	r.reads(vs)
	return nil
}

// Bring holds a tensor that the function brings to the tape, since its second run reads the tensor again. Of the checkpoints
// that run for the first time the outermost one holds it.
func (r *regions) Bring(t *Tape, x *tensor.Tensor) {
	c := r.checkpoint
	if c == nil || c.again || x.Released() {
		return
	}
	for c.outer != nil && !c.outer.again {
		c = c.outer
	}
	held, err := t.rt.Share(t.ctx, x)
	t.fail("Checkpoint", err)
	if err == nil {
		c.own = append(c.own, held)
	}
}

// Made notes a result.
func (r *regions) Made(_ *Tape, op string, v *Variable, pure bool) error {
	if r.checkpoint == nil {
		return nil
	}
	r.results++
	return r.made(op, v, r.results-1, pure)
}

// Needed notes that the second run has to compute v.
func (r *regions) Needed(v *Variable) { r.needs(v) }

// Unread is what is known of the next result, if nobody reads it.
func (r *regions) Unread(*Tape) (dtype tensor.Dtype, shape tensor.Shape, ok bool) {
	if u := r.runningAgain().unreadResult(r.results); u != nil {
		return u.dtype, u.shape, true
	}
	return 0, nil, false
}
