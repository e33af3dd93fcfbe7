package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Maximum returns the greater of a and b, or NaN if either is NaN, broadcast after NumPy's rules
// (torch.maximum).
func (e Elementwise) Maximum(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Maximum, a, b)
}

// Minimum returns the smaller of a and b, or NaN if either is NaN, broadcast after NumPy's rules
// (torch.minimum).
func (e Elementwise) Minimum(ctx context.Context, a, b *Tensor) (*Tensor, error) {
	return e.rt.zip(ctx, backend.Minimum, a, b)
}

// MaximumGrad returns the gradient of operand a of [Elementwise.Maximum]: dy where a is greater,
// half of it where they are equal, 0 where b is greater. It has dy's shape, to which a and b
// broadcast. It is written to dst: dy itself to work in place, or nil for a new tensor.
func (d Gradients) MaximumGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.MaximumGrad, name: "MaximumGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}

// MinimumGrad is MaximumGrad for [Elementwise.Minimum].
func (d Gradients) MinimumGrad(ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error) {
	return d.rt.run(ctx, opSpec{op: backend.MinimumGrad, name: "MinimumGrad", infer: onto, to: into, dst: dst}, dy, a, b)
}

// Where returns a where cond is not 0, and b elsewhere, broadcast after NumPy's rules
// (torch.where). cond is uint8, int32 or int64. a and b have the same dtype, of any kind. One of
// them may be nil, which stands for zeros.
func (e Elementwise) Where(ctx context.Context, cond, a, b *Tensor) (*Tensor, error) {
	return e.rt.where(ctx, "Where", cond, a, b)
}

// MaskedFill returns x with value where mask is not 0, broadcast after NumPy's rules
// (torch.masked_fill). mask is uint8, int32 or int64. x has any dtype that can represent value.
func (e Elementwise) MaskedFill(ctx context.Context, x, mask *Tensor, value float64) (*Tensor, error) {
	rt := e.rt
	in, err := rt.acquire("MaskedFill", x, mask)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := checkValue("MaskedFill", value, x.dtype); err != nil {
		return nil, err
	}
	v, err := rt.allocIn(ctx, "MaskedFill", x.dtype, nil, true)
	if err != nil {
		return nil, err
	}
	defer func() { rt.parked.add(v.ReleaseContext(ctx)) }()
	if err := rt.fill(ctx, v, value); err != nil {
		return nil, err
	}
	return rt.where(ctx, "MaskedFill", mask, v, x)
}

func (rt *Runtime) where(ctx context.Context, name string, cond, a, b *Tensor) (*Tensor, error) {
	ts := present([]*Tensor{cond}, a, b)
	if len(ts) == 1 {
		return nil, fmt.Errorf("tensor: %s: %w: want at least one operand besides the condition", name, ErrInvalid)
	}
	in, err := rt.acquire(name, ts...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	like := ts[1]
	if other := ts[len(ts)-1]; !cond.is(Uint8, Int32, Int64) || like.dtype != other.dtype {
		return nil, fmt.Errorf("tensor: %s: %w: the condition is %v, the operands %v and %v: want uint8, int32 or int64, and one dtype",
			name, ErrDtype, cond.dtype, like.dtype, other.dtype)
	}
	shape := cond.shape
	for _, t := range ts[1:] {
		if shape, err = broadcastShape(name, shape, t.shape); err != nil {
			return nil, err
		}
	}
	return rt.result(ctx, name, like.dtype, shape, func(out *Tensor) error {
		c := rt.call(backend.Where, out, cond, a, b)
		// A missing operand is planned like a scalar.
		c.Plan = plan.NewMeeting(out.shape, cond.shape, a.Shape(), b.Shape())
		return rt.backend.Do(ctx, c)
	})
}
