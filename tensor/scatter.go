package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Scatter returns a copy of x in which elements of src replace those that index selects along a
// dimension (torch.scatter). index and src have one shape, which follows the rules of
// [Layers.Gather]. src has x's dtype, which may be any. If several elements go to one position, the
// last along the dimension stays, in every run. An index outside the dimension sets nothing, and is
// reported as by [Layers.IndexSelect]. On a GPU an index with more than one element along the axis
// takes 4 bytes of scratch memory for each element of x, and has fewer than 2^32-1 elements.
func (l Layers) Scatter(ctx context.Context, x *Tensor, axis int, index, src *Tensor) (*Tensor, error) {
	rt := l.rt
	const op = "Scatter"
	if err := rt.checkSource(op, x, src); err != nil {
		return nil, err
	}
	g, err := rt.scattering(op, x.shape, axis, index, src)
	if err != nil {
		return nil, err
	}
	return rt.scatter(ctx, op, backend.Scatter, x.dtype, x.shape, x, src, index, g, 0)
}

// ScatterGrad returns the gradient of x in [Layers.Scatter]: dy with 0 at the elements that index
// selects. The gradient of src is [Layers.Gather] of dy.
func (d Gradients) ScatterGrad(ctx context.Context, dy *Tensor, axis int, index *Tensor) (*Tensor, error) {
	rt := d.rt
	const op = "ScatterGrad"
	if err := rt.check(op, dy, index); err != nil {
		return nil, err
	}
	g, err := gathering(op, dy.shape, axis, index.shape)
	if err != nil {
		return nil, err
	}
	g.Distinct = true // all are set to 0, in any order
	return rt.scatter(ctx, op, backend.Scatter, dy.dtype, dy.shape, dy, nil, index, g, 0)
}

// ScatterAdd returns a copy of x with src added at the elements that index selects along a
// dimension (torch.scatter_add). index and src have one shape, which follows the rules of
// [Layers.Gather]. The elements for one position are added in their order, so that the result is
// the same in every run. An index outside the dimension adds nothing, and is reported as by
// [Layers.IndexSelect]. The gradient of x is dy, and the gradient of src is [Layers.Gather] of dy.
// A GPU uses up to 16 bytes of scratch memory for each index, and takes fewer than 2^32-1 indices
// and elements.
func (l Layers) ScatterAdd(ctx context.Context, x *Tensor, axis int, index, src *Tensor) (*Tensor, error) {
	rt := l.rt
	const op = "ScatterAdd"
	if err := rt.checkSource(op, x, src); err != nil {
		return nil, err
	}
	g, err := rt.scattering(op, x.shape, axis, index, src)
	if err == nil {
		err = wantFloats(op, x)
	}
	if err != nil {
		return nil, err
	}
	return rt.scatter(ctx, op, backend.GatherGrad, x.dtype, x.shape, x, src, index, g, 0)
}

// OneHot returns, for each label, a vector of classes elements: 1 at the label, and 0 elsewhere
// (torch.nn.functional.one_hot, whose result is int64). labels is int32 or int64; the result has
// its shape followed by classes. The vector of a label outside the classes is zeros, and the label
// is reported as by [Layers.IndexSelect].
func (l Layers) OneHot(ctx context.Context, labels *Tensor, classes int, dtype Dtype) (*Tensor, error) {
	rt := l.rt
	const op = "OneHot"
	if err := rt.check(op, labels); err != nil {
		return nil, err
	}
	if classes < 0 {
		return nil, fmt.Errorf("tensor: %s: %w: %d classes: want at least 0", op, ErrInvalid, classes)
	}
	shape, each := append(labels.Shape(), classes), append(labels.Shape(), 1)
	g, err := gathering(op, shape, -1, each)
	if err != nil {
		return nil, err
	}
	g.Distinct = true
	return rt.scatter(ctx, op, backend.Scatter, dtype, shape, nil, nil, labels, g, 1)
}

// checkSource checks that the operands have one dtype.
func (rt *Runtime) checkSource(op string, x, src *Tensor) error {
	if err := rt.check(op, x, src); err != nil {
		return err
	}
	if x.dtype != src.dtype {
		return fmt.Errorf("tensor: %s: %w: %v does not take elements of %v", op, ErrDtype, x.dtype, src.dtype)
	}
	return nil
}

// scatter returns x, or zeros, in which an operation has set the elements that the index selects to
// those of src, or to value, or has added those of src.
func (rt *Runtime) scatter(ctx context.Context, op string, of backend.Op, dtype Dtype, shape Shape, x, src, index *Tensor, g *plan.Gather, value float64) (*Tensor, error) {
	if err := wantIndex(op, index); err != nil {
		return nil, err
	}
	if _, err := byteSize(op, dtype, shape); err != nil {
		return nil, err
	}
	in, err := rt.acquire(op, present(nil, x, src, index)...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.result(ctx, op, dtype, shape, func(out *Tensor) error {
		if x == nil {
			err = rt.memset(op, out)
		} else {
			err = rt.placeRows(ctx, whole(out), whole(x), shape)
		}
		if err != nil || index.bytes == 0 {
			return err
		}
		c := rt.call(of, out, src, index)
		c.Plan, c.C[0] = g, value
		return rt.doFaulty(ctx, op, c)
	})
}
