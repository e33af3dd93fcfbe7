package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// ofProgram is the step of Func.
type ofProgram struct {
	do   func(*Call) (*tensor.Tensor, error)
	back func(*Call, *tensor.Tensor) ([]*tensor.Tensor, error)
}

var (
	opFunction = NewOp[ofProgram]("Func")
	opConstant = NewOp[constant]("Func")
)

// Func runs an operation of two functions (torch.autograd.Function). An [Op] allocates fewer Go
// objects. forward and backward follow the rules of a [Step], except that backward returns one
// gradient for each input: of the input's shape or a shape to which the input was broadcast, or nil
// for none. The slice may be shorter. backward may overwrite g if it is [tensor.Tensor.Exclusive],
// and may return it once or more; otherwise the tape releases it. A nil backward makes the result a
// constant.
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

// constant is the step of Func without a backward function.
type constant struct{ ofProgram }

func (*constant) constant() {}

func (*ofProgram) fresh() {}

// Forward calls the forward function.
func (f *ofProgram) Forward(c *Call) (*tensor.Tensor, error) {
	c.tape.calls++
	defer func() { c.tape.calls-- }()
	return f.do(c)
}

// Backward calls the backward function and gives the gradients that it returns.
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

// Grads returns g as the gradient of the first input, or err, for a backward function of
// [Tape.Func].
func (c *Call) Grads(g *tensor.Tensor, err error) ([]*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	c.room.grads[0] = g
	return c.room.grads[:], nil
}
