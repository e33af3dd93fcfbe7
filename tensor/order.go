package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Sort returns the elements of x in ascending or descending order along a dimension, and their
// indices in it as int32 (torch.sort with stable=True). Equal elements keep their order, and NaN is
// the greatest number. Both results have new memory.
func (l Layers) Sort(ctx context.Context, x *Tensor, axis int, descending bool) (values, index *Tensor, err error) {
	return l.rt.sort(ctx, "Sort", x, axis, everything, descending)
}

// TopK returns the k greatest elements of x along a dimension in descending order, or the k
// smallest in ascending order, and their indices in it as int32 (torch.topk). They are the first
// elements of [Layers.Sort]. Of equal elements the first are taken; PyTorch takes any. On a GPU, a
// sort needs 8 bytes of scratch memory for each element, or 16 in float64, and twice that if the
// dimension has more than 2,048. TopK with k up to 1,024 needs about k/256 or k/128 bytes for
// each element of a dimension of many thousands.
func (l Layers) TopK(ctx context.Context, x *Tensor, k, axis int, largest bool) (values, index *Tensor, err error) {
	if k < 0 {
		return nil, nil, fmt.Errorf("tensor: TopK: %w: k is %d: want at least 0", ErrInvalid, k)
	}
	return l.rt.sort(ctx, "TopK", x, axis, k, largest)
}

func (rt *Runtime) sort(ctx context.Context, op string, x *Tensor, axis, keep int, descending bool) (values, index *Tensor, err error) {
	o := opSpec{op: backend.Sort, name: op, infer: ordered, dtype: Int32}
	if descending {
		o.c[0] = 1
	}
	if index, err = rt.runAlong(ctx, o, []int{axis, keep}, x); err != nil {
		return nil, nil, err
	}
	g, err := gathering(op, x.shape, axis, index.shape)
	if err == nil {
		values, err = rt.choose(ctx, op, x, index, index.shape, backend.Gather, func(c *backend.Call) { c.Plan = g })
	}
	if err != nil {
		rt.parked.add(index.ReleaseContext(ctx))
		return nil, nil, err
	}
	return values, index, nil
}

// SortGrad returns the gradient, of the given shape, of x in [Layers.Sort] and [Layers.TopK]: dy,
// of the index's shape, at the elements that the index selects, and 0 elsewhere. The index must
// select no element twice.
func (d Gradients) SortGrad(ctx context.Context, dy *Tensor, axis int, index *Tensor, shape ...int) (*Tensor, error) {
	rt := d.rt
	const op = "SortGrad"
	g, err := rt.scattering(op, shape, axis, index, dy)
	if err != nil {
		return nil, err
	}
	g.Distinct = true
	return rt.scatter(ctx, op, backend.Scatter, dy.dtype, shape, nil, dy, index, g, 0)
}
