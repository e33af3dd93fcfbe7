package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// AddNormalize returns sum = x + y, and [Layers.Normalize] of the sum with its statistics. x and y
// have one shape and dtype. The results are bit-identical to [Elementwise.Add] followed by
// Normalize. A GPU computes both in one launch, except in dtypes of 16 bits (fused add and norm).
// The sum may use the memory of x or y: see [Donate].
func (l Layers) AddNormalize(ctx context.Context, x, y, weight, bias *Tensor, c NormConfig) (sum, out, stats *Tensor, err error) {
	rt := l.rt
	const op = "AddNormalize"
	var room [4]*Tensor
	in, err := rt.acquireFloats(op, present(append(room[:0], x, y), weight, bias)...)
	if err != nil {
		return nil, nil, nil, err
	}
	defer in.release()
	if err := sameShape(op, x, y); err != nil {
		return nil, nil, nil, err
	}
	p, err := rt.planWeighted(op, c, x, weight, bias)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, p := range [2]*Tensor{weight, bias} {
		if p != nil && (p.shares(x) || p.shares(y)) { // it is read after the sum is written
			x.donated.Store(false)
			y.donated.Store(false)
		}
	}
	out, stats, err = rt.withStats(ctx, op, x, p.N*p.Groups, func(out, stats *Tensor) (err error) {
		// The last allocation, because it consumes a donation: an earlier error must leave x and y.
		if sum, err = rt.allocResult(ctx, op, &in, x.shape, x, y); err != nil {
			return err
		}
		call := rt.call(backend.AddNormalize, sum, out, stats, x, y, weight, bias)
		call.Plan = p
		if done, err := rt.fused(ctx, call); done {
			return err
		}
		if err := rt.zipTo(ctx, backend.Add, sum, x, y); err != nil {
			return err
		}
		return rt.planned(ctx, backend.Normalize, p, out, stats, sum, weight, bias)
	})
	if err == nil && sum == nil { // x has no elements, so run was not called
		sum, err = rt.alloc(ctx, op, x.dtype, x.shape)
	}
	if err != nil {
		rt.parked.add(sum.Release())
		return nil, nil, nil, err
	}
	return sum, out, stats, nil
}
