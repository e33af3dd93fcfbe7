package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Comparisons return a mask of uint8, 1 where the elements are in the relation and 0 elsewhere, for
// [Tape.Where]. It is a constant. The operands have the same dtype, of any kind, and are broadcast
// after NumPy's rules.

// Equal marks where a equals b (torch.eq).
//
//go:noinline // as Add
func (t *Tape) Equal(a, b *Variable) *Variable {
	return opCompare.applyAs("Equal", t, &comparison{(*tensor.Runtime).Equal}, a, b)
}

// NotEqual marks where a does not equal b (torch.ne).
//
//go:noinline // as Add
func (t *Tape) NotEqual(a, b *Variable) *Variable {
	return opCompare.applyAs("NotEqual", t, &comparison{(*tensor.Runtime).NotEqual}, a, b)
}

// Less marks where a is less than b (torch.lt).
//
//go:noinline // as Add
func (t *Tape) Less(a, b *Variable) *Variable {
	return opCompare.applyAs("Less", t, &comparison{(*tensor.Runtime).Less}, a, b)
}

// LessEqual marks where a is not greater than b, nor NaN (torch.le).
//
//go:noinline // as Add
func (t *Tape) LessEqual(a, b *Variable) *Variable {
	return opCompare.applyAs("LessEqual", t, &comparison{(*tensor.Runtime).LessEqual}, a, b)
}

// Greater marks where a is greater than b (torch.gt).
//
//go:noinline // as Add
func (t *Tape) Greater(a, b *Variable) *Variable {
	return opCompare.applyAs("Greater", t, &comparison{(*tensor.Runtime).Greater}, a, b)
}

// GreaterEqual marks where a is not less than b, nor NaN (torch.ge).
//
//go:noinline // as Add
func (t *Tape) GreaterEqual(a, b *Variable) *Variable {
	return opCompare.applyAs("GreaterEqual", t, &comparison{(*tensor.Runtime).GreaterEqual}, a, b)
}

type comparison struct {
	of func(rt *tensor.Runtime, ctx context.Context, a, b *tensor.Tensor) (*tensor.Tensor, error)
}

var opCompare = newOp[comparison]("Compare")

func (*comparison) constant() {}

func (*comparison) Saves(*Call) {}

func (m *comparison) Forward(c *Call) (*tensor.Tensor, error) {
	return m.of(c.Runtime(), c.Context(), c.Input(0), c.Input(1))
}

// Backward is never called, because the result is a constant.
func (*comparison) Backward(*Call, *tensor.Tensor) error { return nil }
