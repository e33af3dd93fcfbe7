package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// ofProgram is an operation of two functions of the program's.
type ofProgram struct {
	do   func(*Call) (*tensor.Tensor, error)
	back func(*Call, *tensor.Tensor) ([]*tensor.Tensor, error)
}

var (
	opFunction = NewOp[ofProgram]("Func")
	opConstant = NewOp[constant]("Func")
)

// Func is an operation of the program's own that is used in one place (torch.autograd.Function); [Op] is one that costs no
// Go objects. forward and backward are the functions of a [Step], but that backward returns one gradient for each input, of
// the input's shape or one that was broadcast from it; nil, or a slice that is too short, where there is none. g is
// backward's to write in place, if [tensor.Tensor.Exclusive], or to return, once or more; the tape releases it otherwise.
// backward may be nil: then the result has no gradient.
func (t *Tape) Func(name string, inputs []*Variable, forward func(*Call) (*tensor.Tensor, error),
	backward func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error)) *Variable {
	if forward == nil {
		t.fail(name, fmt.Errorf("%w: the forward function is nil", ErrInvalid))
	}
	if backward == nil {
		return opConstant.applyAs(name, t, &constant{ofProgram{do: forward}}, inputs...)
	}
	return opFunction.applyAs(name, t, &ofProgram{forward, backward}, inputs...)
}

// constant is a function without a gradient.
type constant struct{ ofProgram }

func (*constant) constant() {}

func (*ofProgram) fresh() {}

// Forward calls the program's function.
func (f *ofProgram) Forward(c *Call) (*tensor.Tensor, error) {
	c.tape.calls++
	defer func() { c.tape.calls-- }()
	return f.do(c)
}

// Backward calls the program's function, and hands on what it returns.
func (f *ofProgram) Backward(c *Call, g *tensor.Tensor) error {
	grads, err := f.back(c, g)
	c.doneOwn()
	if err == nil && len(grads) > c.Inputs() {
		err = fmt.Errorf("%w: backward returned %d gradients for %d inputs", ErrInvalid, len(grads), c.Inputs())
	}
	if err != nil {
		return err
	}
	for i, d := range grads {
		if d != nil && slices.Contains(grads[i+1:], d) { // the last one gets the tensor itself
			d, err = c.Runtime().Share(c.Context(), d)
		}
		if err = c.Give(i, d, err); err != nil {
			return err
		}
	}
	if !slices.Contains(grads, g) {
		c.Free(g)
	}
	return nil
}

// Grads is what a backward function of [Tape.Func] returns that computed one gradient: of the first input, or an error.
func (c *Call) Grads(g *tensor.Tensor, err error) ([]*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	c.room.grads[0] = g
	return c.room.grads[:], nil
}
