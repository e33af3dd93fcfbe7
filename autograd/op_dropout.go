package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Dropout returns x with each element 0 with probability p, and the others over 1-p; see
// [tensor.Elementwise.Dropout]. On a tape that does not train, as one of [NoGrad] and after
// SetTraining(false), it returns x in the same memory, as torch.nn.functional.dropout(x, p,
// training=self.training) does in a module, whose mode is the tape's here. To drop without
// gradients call SetTraining(true).
func (t *Tape) Dropout(x *Variable, p float64) *Variable {
	switch {
	case t != nil && t.training:
		return opDropout.Apply(t, dropout{p: p, random: t.nextRandom()}, x)
	case !t.begin("Dropout", x):
		return t.inert()
	case !(p >= 0 && p <= 1):
		t.fail("Dropout", fmt.Errorf("%w: the probability is %v: want 0 to 1", ErrInvalid, p))
		return t.inert()
	}
	return t.Reshape(x, x.Shape()...)
}

type dropout struct {
	p      float64
	random tensor.Random
}

var opDropout = newOp[dropout]("Dropout")

func (*dropout) Saves(*Call) {}

func (d *dropout) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	return d.drop(c, nil, c.Input(0))
}

func (d *dropout) Backward(c *Call, g *tensor.Tensor) error {
	y, err := d.drop(c, c.Reuse(g), g)
	return c.GiveReplacing(0, g, y, err)
}

func (d *dropout) drop(c *Call, dst, x *tensor.Tensor) (*tensor.Tensor, error) {
	return c.Runtime().Dropout(c.Context(), dst, x, d.p, d.random)
}
