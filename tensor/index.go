package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// IndexSelect returns a copy of the elements of x at the given indices of a dimension
// (torch.index_select). index is (n), int32 or int64; the result has n elements along the
// dimension. x may have any dtype. An index outside the dimension selects NaN, or 0 in whole
// numbers, and the next read or Synchronize returns an error that wraps [ErrIndex].
func (l Layers) IndexSelect(ctx context.Context, x *Tensor, axis int, index *Tensor) (*Tensor, error) {
	rt := l.rt
	if err := rt.check("IndexSelect", x, index); err != nil {
		return nil, err
	}
	axis, err := axisOf("IndexSelect", x.shape, axis)
	if err != nil {
		return nil, err
	}
	if len(index.shape) > 1 {
		return nil, fmt.Errorf("tensor: IndexSelect: %w: the index is %v: want one dimension", ErrShape, index.shape)
	}
	shape := slices.Clone(x.shape)
	shape[axis] = index.Elements()
	return rt.take(ctx, "IndexSelect", x, axis, index, shape)
}

// IndexSelectGrad returns the gradient, of the given shape, of x in [Layers.IndexSelect]: dy added
// up at the indices. It is the same in every run. An index outside the dimension adds nothing.
func (d Gradients) IndexSelectGrad(ctx context.Context, dy *Tensor, axis int, index *Tensor, shape ...int) (*Tensor, error) {
	rt := d.rt
	if err := rt.check("IndexSelectGrad", dy, index); err != nil {
		return nil, err
	}
	axis, err := axisOf("IndexSelectGrad", shape, axis)
	if err != nil {
		return nil, err
	}
	taken := slices.Clone(Shape(shape))
	taken[axis] = index.Elements()
	if len(index.shape) > 1 || !slices.Equal(taken, dy.shape) {
		return nil, fmt.Errorf("tensor: IndexSelectGrad: %w: dy is %v and the index %v: they do not fit x of %v", ErrShape, dy.shape, index.shape, Shape(shape))
	}
	return rt.takeGrad(ctx, "IndexSelectGrad", dy, axis, index, shape, -1, false)
}

// EmbeddingConfig configures an embedding. Its zero value is PyTorch's default.
type EmbeddingConfig struct {
	// PaddingIndex is the row that gets no gradient; negative numbers count from the end. Nil means
	// none.
	PaddingIndex []int
	// ScaleGradByFreq divides the gradient of each row by the number of indices that select it.
	ScaleGradByFreq bool
}

// padding returns the row of PaddingIndex, or -1.
func (c EmbeddingConfig) padding(op string, rows int) (int, error) {
	if len(c.PaddingIndex) == 0 {
		return -1, nil
	}
	row := c.PaddingIndex[0]
	if row < 0 {
		row += rows
	}
	if len(c.PaddingIndex) > 1 || row < 0 || row >= rows {
		return 0, fmt.Errorf("tensor: %s: %w: the padding index is %v: want one of %d..%d, or none", op, ErrInvalid, c.PaddingIndex, -rows, rows-1)
	}
	return row, nil
}

// Embedding returns the rows of weight (rows, n) that index selects
// (torch.nn.functional.embedding). index is int32 or int64, of any shape; the result has index's
// shape followed by n. An index outside the rows is reported as by [Layers.IndexSelect].
func (l Layers) Embedding(ctx context.Context, index, weight *Tensor, cfg EmbeddingConfig) (*Tensor, error) {
	rt := l.rt
	if err := rt.check("Embedding", index, weight); err != nil {
		return nil, err
	}
	if err := wantRank("Embedding", weight, 2); err != nil {
		return nil, err
	}
	if _, err := cfg.padding("Embedding", weight.shape[0]); err != nil {
		return nil, err
	}
	var room [fewDims]int
	return rt.take(ctx, "Embedding", weight, 0, index, append(append(Shape(room[:0]), index.shape...), weight.shape[1]))
}

// taking returns how index takes rows of an array of the given shape.
func taking(shape Shape, axis int, index *Tensor) plan.Take {
	return plan.Take{Outer: elements(shape[:axis]), Rows: shape[axis], Count: index.Elements(), Inner: elements(shape[axis+1:])}
}

func wantIndex(op string, index *Tensor) error {
	if !index.is(Int32, Int64) {
		return fmt.Errorf("tensor: %s: %w: the index is %v: want int32 or int64", op, ErrDtype, index.dtype)
	}
	return nil
}

func (rt *Runtime) take(ctx context.Context, op string, x *Tensor, axis int, index *Tensor, shape Shape) (*Tensor, error) {
	return rt.choose(ctx, op, x, index, shape, backend.Take, func(c *backend.Call) { backend.SetParams(c, taking(x.shape, axis, index)) })
}

// choose queues an operation that reads x by an index, and may record a fault.
func (rt *Runtime) choose(ctx context.Context, op string, x, index *Tensor, shape Shape, of backend.Op, set func(c *backend.Call)) (*Tensor, error) {
	if err := wantIndex(op, index); err != nil {
		return nil, err
	}
	in, err := rt.acquire(op, x, index)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.result(ctx, op, x.dtype, shape, func(out *Tensor) error {
		if out.bytes == 0 {
			return nil
		}
		c := rt.call(of, out, x, index)
		set(c)
		return rt.doFaulty(ctx, op, c)
	})
}

// doFaulty queues a call whose last operand is the fault word.
func (rt *Runtime) doFaulty(ctx context.Context, op string, c *backend.Call) error {
	fault, err := rt.faultWord(ctx)
	if err != nil {
		c.Free()
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	defer func() { rt.parked.add(fault.release(ctx)) }()
	c.Add(faultRef(fault))
	defer rt.armFaults()
	return rt.backend.Do(ctx, c)
}

// Gather returns the elements that index selects along a dimension of x (torch.gather). index is
// int32 or int64. It has as many dimensions as x, and none of them is larger than x's, except the
// one along which it selects. The result has index's shape. An index outside the dimension is
// reported as by [Layers.IndexSelect]. x may have any dtype.
func (l Layers) Gather(ctx context.Context, x *Tensor, axis int, index *Tensor) (*Tensor, error) {
	rt := l.rt
	if err := rt.check("Gather", x, index); err != nil {
		return nil, err
	}
	g, err := gathering("Gather", x.shape, axis, index.shape)
	if err != nil {
		return nil, err
	}
	return rt.choose(ctx, "Gather", x, index, index.shape, backend.Gather, func(c *backend.Call) { c.Plan = g })
}

// GatherGrad returns the gradient, of the given shape, of x in [Layers.Gather]: dy added up at the
// elements that were selected. It is the same in every run. An index outside the dimension adds
// nothing, and is reported as by [Layers.IndexSelect].
func (d Gradients) GatherGrad(ctx context.Context, dy *Tensor, axis int, index *Tensor, shape ...int) (*Tensor, error) {
	rt := d.rt
	const op = "GatherGrad"
	g, err := rt.scattering(op, shape, axis, index, dy)
	if err == nil {
		err = wantFloats(op, dy)
	}
	if err != nil {
		return nil, err
	}
	return rt.scatter(ctx, op, backend.GatherGrad, dy.dtype, shape, nil, dy, index, g, 0)
}

// gathering returns how index selects from an array of the given shape.
func gathering(op string, shape Shape, axis int, index Shape) (*plan.Gather, error) {
	shape, index = atLeast1d(shape), atLeast1d(index)
	fits := len(index) == len(shape)
	axis, err := axisOf(op, shape, axis)
	if err != nil {
		return nil, err
	}
	for i := range index {
		fits = fits && (i == axis || index[i] <= shape[i])
	}
	if !fits {
		return nil, fmt.Errorf("tensor: %s: %w: the index %v chooses from %v along dimension %d: want as many dimensions, none of the others larger",
			op, ErrShape, index, shape, axis)
	}
	of, from := plan.Strides(index), plan.Strides(shape)
	g := &plan.Gather{Length: index[axis], IndexStride: of[axis], Rows: shape[axis], XStride: from[axis]}
	g.Columns = plan.NewPlacement(slices.Delete(slices.Clone(index), axis, axis+1), slices.Delete(of, axis, axis+1), slices.Delete(from, axis, axis+1))
	return g, nil
}

// scattering checks a source and an index of its shape, and returns how the index selects from an
// array of the given shape.
func (rt *Runtime) scattering(op string, shape Shape, axis int, index, src *Tensor) (*plan.Gather, error) {
	if err := rt.check(op, index, src); err != nil {
		return nil, err
	}
	if err := sameShape(op, src, index); err != nil {
		return nil, err
	}
	return gathering(op, shape, axis, index.shape)
}
