package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Target is the target of a loss: a [*Variable] of the tape, or a [*tensor.Tensor], which is shared
// like a [Tape.Input] and keeps its dtype.
type Target interface {
	// Shape returns the shape of the loss's first operand, or another one that the loss allows.
	Shape() tensor.Shape
}

// target brings a target to the tape. If own is true, the operation releases the variable.
func (t *Tape) target(op string, target Target) (v *Variable, own bool) {
	switch y := target.(type) {
	case *Variable:
		return y, false
	case *tensor.Tensor:
		if t.begin(op) {
			return t.share(op, y), true
		}
	default:
		t.fail(op, fmt.Errorf("%w: the target is of type %T: want a *autograd.Variable or a *tensor.Tensor", ErrInvalid, target))
	}
	return t.inert(), false
}
