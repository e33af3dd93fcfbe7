package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Maximum returns the greater of a and b, broadcast after NumPy's rules; NaN if one is (torch.maximum). Where they are equal
// each gets half of the gradient.
func (t *Tape) Maximum(a, b *Variable) *Variable {
	return t.extreme("Maximum", a, b, (*tensor.Runtime).Maximum, (*tensor.Runtime).MaximumGrad)
}

// Minimum returns the smaller of a and b as Maximum does (torch.minimum).
func (t *Tape) Minimum(a, b *Variable) *Variable {
	return t.extreme("Minimum", a, b, (*tensor.Runtime).Minimum, (*tensor.Runtime).MinimumGrad)
}

func (t *Tape) extreme(op string, a, b *Variable,
	f func(rt *tensor.Runtime, ctx context.Context, a, b *tensor.Tensor) (*tensor.Tensor, error),
	grad func(rt *tensor.Runtime, ctx context.Context, dst, dy, a, b *tensor.Tensor) (*tensor.Tensor, error)) *Variable {
	return t.Func(op, []*Variable{a, b}, func(c *Call) (*tensor.Tensor, error) {
		c.Save(c.Input(0), c.Input(1))
		return f(t.rt, t.ctx, c.Input(0), c.Input(1))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		x, y := c.Input(0), c.Input(1)
		grads := make([]*tensor.Tensor, 2)
		var err error
		if c.NeedsGrad(0) {
			var dst *tensor.Tensor
			if !c.NeedsGrad(1) {
				dst = inPlace(g)
			}
			if grads[0], err = grad(t.rt, t.ctx, dst, g, x, y); err != nil {
				return nil, err
			}
		}
		if c.NeedsGrad(1) {
			grads[1], err = grad(t.rt, t.ctx, inPlace(g), g, y, x)
		}
		return grads, err
	})
}

// Where returns a where cond is not 0, and b elsewhere, broadcast after NumPy's rules (torch.where). cond is uint8, int32 or
// int64, such as an Input; it has no gradient.
func (t *Tape) Where(cond, a, b *Variable) *Variable {
	return t.Func("Where", []*Variable{cond, a, b}, func(c *Call) (*tensor.Tensor, error) {
		c.Save(c.Input(0))
		return t.rt.Where(t.ctx, c.Input(0), c.Input(1), c.Input(2))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		grads := make([]*tensor.Tensor, 3)
		var err error
		if c.NeedsGrad(1) {
			if grads[1], err = t.rt.Where(t.ctx, c.Input(0), g, nil); err != nil {
				return nil, err
			}
		}
		if c.NeedsGrad(2) {
			grads[2], err = t.rt.Where(t.ctx, c.Input(0), nil, g)
		}
		return grads, err
	})
}
