package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Dropout returns x with each element 0 with probability p, and the others over 1-p; see
// [tensor.Elementwise.Dropout]. On a tape that does not train, such as one of [NoGrad] or after
// SetTraining(false), it returns x in the same memory, as torch.nn.functional.dropout(x, p,
// training=self.training) does in a module in evaluation mode. To drop without gradients call
// SetTraining(true).
func (t *Tape) Dropout(x *Variable, p float64) *Variable {
	if t != nil && t.training {
		return opDropout.Apply(t, dropout{p: p, random: t.nextRandom()}, x)
	}
	return t.undropped("Dropout", x, p)
}

// Dropout2d is [Tape.Dropout] of whole channels of x (n, channels, ...)
// (torch.nn.functional.dropout2d).
func (t *Tape) Dropout2d(x *Variable, p float64) *Variable {
	if t != nil && t.training {
		return opDropout2d.Apply(t, dropout2d{dropout{p: p, random: t.nextRandom()}}, x)
	}
	return t.undropped("Dropout2d", x, p)
}

// undropped returns x in the same memory, for a tape that does not train.
func (t *Tape) undropped(op string, x *Variable, p float64) *Variable {
	if !t.begin(op, x) {
		return t.inert()
	}
	if !(p >= 0 && p <= 1) {
		t.fail(op, fmt.Errorf("%w: the probability is %v: want 0 to 1", ErrInvalid, p))
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

// dropout2d is one use of Dropout2d. Its mask is made again in Backward.
type dropout2d struct{ dropout }

var opDropout2d = newOp[dropout2d]("Dropout2d")

func (d *dropout2d) Forward(c *Call) (*tensor.Tensor, error) {
	mask, err := d.mask(c)
	if err != nil {
		return nil, err
	}
	c.Overwrite(0)
	y, err := c.Runtime().Mul(c.Context(), c.Input(0), mask)
	c.Free(mask)
	return y, err
}

func (d *dropout2d) Backward(c *Call, g *tensor.Tensor) error {
	mask, err := d.mask(c)
	if err != nil {
		c.Free(g)
		return err
	}
	if c.Reuse(g) != nil {
		err = c.Runtime().MulInPlace(c.Context(), g, mask)
		c.Free(mask)
		return c.Give(0, g, err)
	}
	y, err := c.Runtime().Mul(c.Context(), g, mask)
	c.Free(mask)
	return c.GiveReplacing(0, g, y, err)
}

// mask returns 0 or 1/(1-p) for each channel, in a shape that broadcasts to the input's.
func (d *dropout2d) mask(c *Call) (*tensor.Tensor, error) {
	x := c.Input(0)
	shape := c.dims(x)
	if len(shape) < 2 {
		return nil, fmt.Errorf("%w %v: want (n, channels, ...)", tensor.ErrShape, x.Shape())
	}
	for i := range shape[2:] {
		shape[2+i] = 1
	}
	ones, err := c.Runtime().Full(c.Context(), 1, x.Dtype(), shape...)
	if err != nil {
		return nil, err
	}
	mask, err := d.drop(c, ones, ones)
	if err != nil {
		c.Free(ones)
	}
	return mask, err
}
