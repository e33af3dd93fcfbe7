package autograd

import "github.com/cistern-ml/cistern/tensor"

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

// MaskedFill returns x with value where mask is not 0, broadcast after NumPy's rules
// (torch.masked_fill). mask is uint8, int32 or int64, such as a comparison; it has no gradient, and
// that of x is 0 where x was filled.
//
//go:noinline // as Add
func (t *Tape) MaskedFill(x, mask *Variable, value float64) *Variable {
	return opMaskedFill.Apply(t, maskedFill{value}, x, mask)
}

type maskedFill struct{ value float64 }

var opMaskedFill = newOp[maskedFill]("MaskedFill")

func (*maskedFill) Saves(c *Call) { c.Save(c.Input(1)) }

func (m *maskedFill) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().MaskedFill(c.Context(), c.Input(0), c.Input(1), m.value)
}

func (*maskedFill) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().Where(c.Context(), c.Input(1), nil, g)
	return c.GiveReplacing(0, g, d, err)
}
