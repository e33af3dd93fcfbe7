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

// PowBaseGrad is the gradient of a as the base of [Elementwise.Pow], in dy's shape, which a and b
// broadcast to: dy * b * pow(a, b-1), and 0 where b is 0. It goes to dst: dy itself to work in
// place, or nil for a new tensor.
func (d Gradients) PowBaseGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.PowBaseGrad, name: "PowBaseGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}

// PowExponentGrad is the gradient of b as PowBaseGrad is that of a: dy * pow(a, b) * log(a), where
// the slope is 0 if a is 0 and b is not negative.
func (d Gradients) PowExponentGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.PowExponentGrad, name: "PowExponentGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}
