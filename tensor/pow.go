package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Pow returns a to the power of b, broadcast after NumPy's rules (torch.pow). A negative number to
// a power that is not whole is NaN; any number to the power of 0 is 1.
func (e Elementwise) Pow(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Pow, a, b)
}

// PowBaseGrad returns the gradient of the base a of [Elementwise.Pow]: dy * b * pow(a, b-1), and 0
// where b is 0. It has dy's shape, to which a and b broadcast. It is written to dst: dy itself to
// work in place, or nil for a new tensor.
func (d Gradients) PowBaseGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.PowBaseGrad, name: "PowBaseGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}

// PowExponentGrad returns the gradient of the exponent b, like PowBaseGrad: dy * pow(a, b) *
// log(a), with a slope of 0 where a is 0 and b is not negative.
func (d Gradients) PowExponentGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.PowExponentGrad, name: "PowExponentGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}
