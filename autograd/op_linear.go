package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Linear returns x wᵀ + b, the function of a dense layer, for x (rows, …, in), w (out, in) and b
// (out), which may be nil (torch.nn.functional.linear). The bias is added in place.
func (t *Tape) Linear(x, w, b *Variable) *Variable {
	if b == nil {
		return opLinear.Apply(t, linear{}, x, w)
	}
	return opLinear.Apply(t, linear{}, x, w, b)
}

// LinearReLU is Linear and then ReLU. Both bias and ReLU work in place on the product, so that the
// activation takes half the memory of the two calls.
func (t *Tape) LinearReLU(x, w, b *Variable) *Variable {
	if b == nil {
		return t.ReLU(t.Linear(x, w, nil).Once())
	}
	y := opLinear.applyAs("LinearReLU", t, &linear{relu: true}, x, w, b)
	if y.needsGrad && w.needsGrad && b.needsGrad {
		y.reluOf = w.value.Shape()[1]
	}
	return y
}

// linear is a dense layer of x, w and an optional bias. If relu is true, there is a bias.
//
// The backward product of the next layer may also apply the mask of a LinearReLU to the gradient.
// reluOf of the variable between the layers allows that, and masked records that it has happened.
type linear struct{ relu bool }

var opLinear = newOp[linear]("Linear")

func (l *linear) Saves(c *Call) {
	if c.NeedsGrad(1) {
		c.Save(c.Input(0))
	}
	if c.NeedsGrad(0) {
		c.Save(c.Input(1))
	}
	if l.relu {
		c.Save(c.Result())
	}
}

func (l *linear) Forward(c *Call) (*tensor.Tensor, error) {
	rt, ctx, x, w, b := c.Runtime(), c.Context(), c.Input(0), c.Input(1), c.Input(2)
	switch {
	case w.Rank() != 2:
		return nil, fmt.Errorf("%w %v: want weights (out, in)", tensor.ErrShape, w.Shape())
	case b == nil:
		return rt.MatMul(ctx, x, w, tensor.TransB)
	case l.relu:
		return rt.LinearReLU(ctx, x, w, b)
	}
	return rt.Linear(ctx, x, w, b)
}

func (l *linear) Backward(c *Call, g *tensor.Tensor) (err error) {
	bias := c.NeedsGrad(2)
	if l.relu {
		if !c.out.masked {
			if g, err = l.mask(c, g); err != nil {
				return err
			}
			bias = false
		}
		c.DoneResult()
	}
	if err := l.weights(c, g, bias); err != nil {
		return err
	}
	if c.NeedsGrad(0) {
		if err := l.input(c, g); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}

// mask returns the gradient of ReLU's argument, in g's memory if possible, and gives the bias its
// gradient.
func (l *linear) mask(c *Call, g *tensor.Tensor) (d *tensor.Tensor, err error) {
	var db *tensor.Tensor
	if c.NeedsGrad(2) {
		d, db, err = c.Runtime().ReLUBiasGrad(c.Context(), c.Reuse(g), g, c.Result())
	} else {
		d, err = c.Runtime().ApplyGrad(c.Context(), fn.ReLU, c.Reuse(g), g, c.Result())
	}
	if err != nil {
		return nil, err
	}
	if d != g {
		c.Free(g)
	}
	return d, c.Give(2, db, nil)
}

// weights gives the weights and, if bias is true, the bias their gradients.
func (l *linear) weights(c *Call, g *tensor.Tensor, bias bool) error {
	switch {
	case c.NeedsGrad(1):
		dw, db, err := c.Runtime().LinearWeightGrad(c.Context(), g, c.Input(0), bias)
		c.Done(0)
		if err := c.Give(1, dw, err); err != nil {
			return err
		}
		if bias {
			return c.Give(2, db, nil)
		}
	case bias:
		db, err := c.Runtime().SumTo(c.Context(), g, c.dims(c.Input(2))...)
		return c.Give(2, db, err)
	}
	return nil
}

// input gives x its gradient, while ranks exchange those of the weights and the bias.
func (l *linear) input(c *Call, g *tensor.Tensor) error {
	x := c.inputs[0]
	var y *tensor.Tensor
	// If w is trained, this step has saved x, and fresh has checked it. An unsaved x may have been
	// overwritten.
	if x.reluOf > 0 && c.NeedsGrad(1) && !x.value.Released() {
		y = x.value
	}
	d, masked, err := c.Runtime().LinearInputGrad(c.Context(), g, c.Input(1), y, x.reluOf)
	masked = masked && (x.grad == nil || x.masked)
	err = c.Give(0, d, err)
	x.masked = masked
	return err
}
