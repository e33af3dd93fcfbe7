package autograd

import "github.com/cistern-ml/cistern/tensor"

// Maximum returns the greater of a and b, broadcast after NumPy's rules; NaN if one is
// (torch.maximum). Where they are equal each gets half of the gradient.
//
//go:noinline // as Add
func (t *Tape) Maximum(a, b *Variable) *Variable {
	return opExtreme.applyAs("Maximum", t, &extreme{greatest: true}, a, b)
}

// Minimum returns the smaller of a and b as Maximum does (torch.minimum).
//
//go:noinline // as Add
func (t *Tape) Minimum(a, b *Variable) *Variable {
	return opExtreme.applyAs("Minimum", t, &extreme{}, a, b)
}

type extreme struct{ greatest bool }

var opExtreme = newOp[extreme]("Minimum")

func (e *extreme) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(0), c.Input(1))
	if e.greatest {
		return c.Runtime().Maximum(c.Context(), c.Input(0), c.Input(1))
	}
	return c.Runtime().Minimum(c.Context(), c.Input(0), c.Input(1))
}

func (e *extreme) Backward(c *Call, g *tensor.Tensor) error {
	grad := (*tensor.Runtime).MinimumGrad
	if e.greatest {
		grad = (*tensor.Runtime).MaximumGrad
	}
	rt, ctx, a, b := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
	if !c.NeedsGrad(1) {
		d, err := grad(rt, ctx, c.Reuse(g), g, a, b)
		return c.GiveReplacing(0, g, d, err)
	}
	if c.NeedsGrad(0) {
		d, err := grad(rt, ctx, nil, g, a, b)
		if err := c.Give(0, d, err); err != nil {
			return err
		}
	}
	d, err := grad(rt, ctx, c.Reuse(g), g, b, a)
	return c.GiveReplacing(1, g, d, err)
}

// Where returns a where cond is not 0, and b elsewhere, broadcast after NumPy's rules
// (torch.where). cond is uint8, int32 or int64, such as an Input; it has no gradient.
//
//go:noinline // as Add
func (t *Tape) Where(cond, a, b *Variable) *Variable { return opWhere.Apply(t, where{}, cond, a, b) }

type where struct{}

var opWhere = newOp[where]("Where")

func (where) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(0))
	return c.Runtime().Where(c.Context(), c.Input(0), c.Input(1), c.Input(2))
}

func (where) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, cond := c.Runtime(), c.Context(), c.Input(0)
	if c.NeedsGrad(1) {
		d, err := rt.Where(ctx, cond, g, nil)
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	if c.NeedsGrad(2) {
		d, err := rt.Where(ctx, cond, nil, g)
		if err := c.Give(2, d, err); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}
