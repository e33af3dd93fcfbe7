package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// dropout is the runtime's.
func (t *Tape) dropout(dst, x *tensor.Tensor, p float64, r random) (*tensor.Tensor, error) {
	if r.live != nil {
		return t.rt.DropoutSeeded(t.ctx, dst, x, p, r.live, r.stream)
	}
	return t.rt.Dropout(t.ctx, dst, x, p, r.seed, r.stream)
}

// Dropout returns x with each element 0 with probability p, and the others over 1-p; see
// [tensor.Elementwise.Dropout]. On a tape that does not train, as one of [NoGrad] and after
// SetTraining(false), it returns x in the same memory, as torch.nn.functional.dropout(x, p,
// training=self.training) does in a module, whose mode is the tape's here. To drop without
// gradients call SetTraining(true).
func (t *Tape) Dropout(x *Variable, p float64) *Variable {
	if t == nil || !t.training {
		if !t.begin("Dropout", x) {
			return t.inert()
		}
		if !(p >= 0 && p <= 1) {
			t.fail("Dropout", fmt.Errorf("%w: the probability is %v: want 0 to 1", ErrInvalid, p))
			return t.inert()
		}
		return t.Reshape(x, x.Shape()...)
	}
	var r random
	return t.Func("Dropout", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		r = t.nextRandom()
		return t.computeIfRead(func() (*tensor.Tensor, error) {
			t.donate(x)
			return t.dropout(nil, x.value, p, r)
		})
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.dropout(inPlace(g), g, p, r))
	})
}
