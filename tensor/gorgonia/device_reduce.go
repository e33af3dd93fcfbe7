package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Sum returns the sum along axes, or of all elements if there are no axes.
func (e *DeviceEngine) Sum(a gtensor.Tensor, along ...int) (gtensor.Tensor, error) {
	return one(e, "Sum", func(c *call) (gtensor.Tensor, error) {
		xs, _, err := c.floats(a)
		if err != nil {
			return nil, err
		}
		kept, folded, err := axesOf(xs[0].Dims, along)
		if err != nil {
			return nil, err
		}
		x, err := c.dense(xs[0].Array)
		if err != nil {
			return nil, err
		}
		sum, err := c.sum(x, xs[0].dtype(), folded...)
		if err != nil {
			return nil, err
		}
		r, err := c.adopt(sum, xs[0].dtype(), pickDims(x.Dims, kept))
		return r.d, err
	})
}

// sum returns the runtime's sum of a dense array.
func (c *call) sum(x strided.Array, dt gtensor.Dtype, axes ...int) (*tensor.Tensor, error) {
	t, err := c.tensor(x, dt)
	if err != nil {
		return nil, err
	}
	return c.e.rt.Sum(context.Background(), t, axes...)
}

// axesOf splits the dimensions into those that are kept and those that are folded. Without axes all
// are folded.
func axesOf(dims, along []int) (kept, folded []int, err error) {
	for i := range dims {
		if len(along) == 0 || slices.Contains(along, i) {
			folded = append(folded, i)
		} else {
			kept = append(kept, i)
		}
	}
	for i, axis := range along {
		if axis < 0 || axis >= len(dims) {
			return nil, nil, fmt.Errorf("%w: %v has no axis %d", ErrShape, gtensor.Shape(dims), axis)
		}
		if slices.Contains(along[:i], axis) {
			return nil, nil, fmt.Errorf("%w: axis %d is given twice", ErrShape, axis)
		}
	}
	return kept, folded, nil
}

func pickDims(dims, which []int) gtensor.Shape {
	shape := make(gtensor.Shape, len(which))
	for i, d := range which {
		shape[i] = dims[d]
	}
	return shape
}

func axisOrAll(axis int) []int {
	if axis == gtensor.AllAxes {
		return nil
	}
	return []int{axis}
}

func (e *DeviceEngine) fold(op string, least, places bool, a gtensor.Tensor, along []int) (gtensor.Tensor, error) {
	return one(e, op, func(c *call) (gtensor.Tensor, error) {
		xs, t, err := c.floats(a)
		if err != nil {
			return nil, err
		}
		x := xs[0]
		kept, folded, err := axesOf(x.Dims, along)
		if err != nil {
			return nil, err
		}
		dt := x.dtype()
		if places {
			dt = gtensor.Int
		}
		r, err := c.result(dt, pickDims(x.Dims, kept))
		if err != nil {
			return nil, err
		}
		return r.d, c.e.kernels.Fold(least, places, t, r.Ptr, x.Array, kept, folded)
	})
}
