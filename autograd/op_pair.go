package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Maximum returns the greater of a and b, broadcast after NumPy's rules; NaN if one is
// (torch.maximum). Where they are equal each gets half of the gradient.
//
//go:noinline // as Add
func (t *Tape) Maximum(a, b *Variable) *Variable {
	return opPair.applyAs("Maximum", t, &pair{maximum}, a, b)
}

// Minimum returns the smaller of a and b as Maximum does (torch.minimum).
//
//go:noinline // as Add
func (t *Tape) Minimum(a, b *Variable) *Variable {
	return opPair.applyAs("Minimum", t, &pair{minimum}, a, b)
}

// Pow returns a to the power of b, broadcast after NumPy's rules (torch.pow); see
// [tensor.Elementwise.Pow] and, for the gradients, [tensor.Gradients.PowBaseGrad] and
// PowExponentGrad.
//
//go:noinline // as Add
func (t *Tape) Pow(a, b *Variable) *Variable {
	return opPair.applyAs("Pow", t, &pair{power}, a, b)
}

// pair is an operation of two operands that both gradients read.
type pair struct{ *pairKind }

type pairKind struct {
	of func(rt *tensor.Runtime, ctx context.Context, a, b *tensor.Tensor) (*tensor.Tensor, error)
	// first and second are the gradients of a and b, in dst or new memory.
	first, second func(rt *tensor.Runtime, ctx context.Context, dst, dy, a, b *tensor.Tensor) (*tensor.Tensor, error)
}

var (
	opPair  = newOp[pair]("Pair")
	maximum = &pairKind{(*tensor.Runtime).Maximum, (*tensor.Runtime).MaximumGrad, func(rt *tensor.Runtime, ctx context.Context, dst, dy, a, b *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.MaximumGrad(ctx, dst, dy, b, a)
	}}
	minimum = &pairKind{(*tensor.Runtime).Minimum, (*tensor.Runtime).MinimumGrad, func(rt *tensor.Runtime, ctx context.Context, dst, dy, a, b *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.MinimumGrad(ctx, dst, dy, b, a)
	}}
	power = &pairKind{(*tensor.Runtime).Pow, (*tensor.Runtime).PowBaseGrad, (*tensor.Runtime).PowExponentGrad}
)

func (p *pair) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(0), c.Input(1))
	return p.of(c.Runtime(), c.Context(), c.Input(0), c.Input(1))
}

func (p *pair) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, a, b := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
	if !c.NeedsGrad(1) {
		d, err := p.first(rt, ctx, c.Reuse(g), g, a, b)
		return c.GiveReplacing(0, g, d, err)
	}
	if c.NeedsGrad(0) {
		d, err := p.first(rt, ctx, nil, g, a, b)
		if err := c.Give(0, d, err); err != nil {
			return err
		}
	}
	d, err := p.second(rt, ctx, c.Reuse(g), g, a, b)
	return c.GiveReplacing(1, g, d, err)
}
