package autograd

import "github.com/cistern-ml/cistern/tensor"

// PReLU returns x where it is positive, and elsewhere x times weight, (1) or (channels) for x (n,
// channels, ...); see [tensor.Elementwise.PReLU].
//
//go:noinline // as Add
func (t *Tape) PReLU(x, weight *Variable) *Variable { return opPReLU.Apply(t, prelu{}, x, weight) }

type prelu struct{}

var opPReLU = newOp[prelu]("PReLU")

func (prelu) Saves(c *Call) {
	c.Save(c.Input(0))
	if c.NeedsGrad(0) {
		c.Save(c.Input(1))
	}
}

func (prelu) Forward(c *Call) (*tensor.Tensor, error) {
	if !c.NeedsGrads() {
		c.Overwrite(0)
	}
	return c.Runtime().PReLU(c.Context(), c.Input(0), c.Input(1))
}

// Backward gives the weight its gradient before x, whose gradient takes g's memory.
func (prelu) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, x, weight := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
	if c.NeedsGrad(1) {
		d, err := rt.PReLUWeightGrad(ctx, g, x, c.dims(weight)[0])
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	if !c.NeedsGrad(0) {
		c.Free(g)
		return nil
	}
	d, err := rt.PReLUGrad(ctx, c.Reuse(g), g, x, weight)
	return c.GiveReplacing(0, g, d, err)
}
