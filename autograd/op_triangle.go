package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Tril returns the matrices x (…, rows, cols) with zeros above a diagonal: where column - row >
// diagonal (torch.tril, whose diagonal is 0).
//
//go:noinline // as Add
func (t *Tape) Tril(x *Variable, diagonal int) *Variable {
	return opTriangle.applyAs("Tril", t, &triangle{(*tensor.Runtime).Tril, diagonal}, x)
}

// Triu returns the matrices x (…, rows, cols) with zeros below a diagonal: where column - row <
// diagonal (torch.triu, whose diagonal is 0).
//
//go:noinline // as Add
func (t *Tape) Triu(x *Variable, diagonal int) *Variable {
	return opTriangle.applyAs("Triu", t, &triangle{(*tensor.Runtime).Triu, diagonal}, x)
}

type triangle struct {
	of       func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor, diagonal int) (*tensor.Tensor, error)
	diagonal int
}

var opTriangle = newOp[triangle]("Tril")

func (*triangle) Saves(*Call) {}

func (m *triangle) Forward(c *Call) (*tensor.Tensor, error) {
	return m.of(c.Runtime(), c.Context(), c.Input(0), m.diagonal)
}

func (m *triangle) Backward(c *Call, g *tensor.Tensor) error {
	d, err := m.of(c.Runtime(), c.Context(), g, m.diagonal)
	return c.GiveReplacing(0, g, d, err)
}
