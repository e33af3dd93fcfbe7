package gorgonia

import (
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Transpose moves the data of a tensor that was transposed with T (gtensor.Transposer), so that it
// has the given strides. Because the library ignores the error in Reshape, the engine's next
// operation returns it as well.
func (e *DeviceEngine) Transpose(t gtensor.Tensor, strides []int) error {
	err := e.do("Transpose", func(c *call) error {
		x, err := c.operand(t)
		if err != nil {
			return err
		}
		moved, err := c.temp(x.Size, x.Dims...)
		if err != nil {
			return err
		}
		if len(strides) == len(x.Dims) {
			moved.Strides = slices.Clone(strides)
		}
		if err := c.e.kernels.Copy(moved, x.Array); err != nil {
			return err
		}
		to := moved
		to.Ptr = x.Ptr
		return c.e.kernels.Copy(to, moved)
	})
	e.park(err)
	return err
}

// Materialize returns a contiguous copy of a view or a transposed tensor, and other tensors
// unchanged. (Dense.Materialize returns zeros for strided tensors.)
func (e *DeviceEngine) Materialize(t *gtensor.Dense) (*gtensor.Dense, error) {
	return one(e, "Materialize", func(c *call) (*gtensor.Dense, error) {
		x, err := c.operand(t)
		if err != nil {
			return nil, err
		}
		if !t.IsMaterializable() {
			return t, nil
		}
		r, err := c.result(x.dtype(), t.Shape().Clone())
		if err != nil {
			return nil, err
		}
		return r.d, c.e.kernels.Copy(r.Array, x.Array)
	})
}

// Concat joins tensors along an axis.
func (e *DeviceEngine) Concat(t gtensor.Tensor, axis int, others ...gtensor.Tensor) (gtensor.Tensor, error) {
	return one(e, "Concat", func(c *call) (gtensor.Tensor, error) {
		all, err := c.alike(append([]gtensor.Tensor{t}, others...)...)
		if err != nil {
			return nil, err
		}
		shapes := make([]gtensor.Shape, len(others))
		for i, o := range all[1:] {
			shapes[i] = o.d.Shape()
		}
		shape, err := all[0].d.Shape().Concat(axis, shapes...)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrShape, err)
		}
		axis := max(axis, 0) // AllAxes means the first axis
		r, err := c.result(all[0].dtype(), shape.Clone())
		if err != nil {
			return nil, err
		}
		at := 0
		for _, o := range all {
			n := o.Dims[axis]
			if err := c.e.kernels.Copy(r.Part(axis, at, n), o.Array); err != nil {
				return nil, err
			}
			at += n
		}
		return r.d, nil
	})
}

// StackDense joins tensors along a new axis.
func (e *DeviceEngine) StackDense(t gtensor.DenseTensor, axis int, others ...gtensor.DenseTensor) (gtensor.DenseTensor, error) {
	ts := []gtensor.Tensor{t}
	for _, o := range others {
		ts = append(ts, o)
	}
	return one(e, "Stack", func(c *call) (gtensor.DenseTensor, error) {
		all, err := c.alike(ts...)
		if err != nil {
			return nil, err
		}
		dims := all[0].Dims
		if axis < 0 || axis > len(dims) {
			return nil, fmt.Errorf("%w: tensors of shape %v can't be stacked along axis %d", ErrShape, all[0].d.Shape(), axis)
		}
		for _, o := range all {
			if !slices.Equal(o.Dims, dims) {
				return nil, fmt.Errorf("%w: %v and %v: want equal shapes", ErrShape, all[0].d.Shape(), o.d.Shape())
			}
		}
		r, err := c.result(all[0].dtype(), slices.Insert(slices.Clone(dims), axis, len(all)))
		if err != nil {
			return nil, err
		}
		for i, o := range all {
			if err := c.e.kernels.Copy(r.Drop(axis, i), o.Array); err != nil {
				return nil, err
			}
		}
		return r.d, nil
	})
}

// Repeat repeats the elements along an axis, or along gtensor.AllAxes. If the numbers of repeats
// differ, it needs a launch for each element of the axis.
func (e *DeviceEngine) Repeat(t gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	return one(e, "Repeat", func(c *call) (gtensor.Tensor, error) {
		x, shape, counts, err := c.repeated(t, axis, repeats)
		if err != nil {
			return nil, err
		}
		r, err := c.result(x.dtype(), shape)
		if err != nil {
			return nil, err
		}
		return r.d, c.repeat(r.Array, x.Array, max(axis, 0), counts)
	})
}

// RepeatReuse is Repeat into reuse, which must have the result's shape.
func (e *DeviceEngine) RepeatReuse(t, reuse gtensor.Tensor, axis int, repeats ...int) (gtensor.Tensor, error) {
	return one(e, "RepeatReuse", func(c *call) (gtensor.Tensor, error) {
		x, shape, counts, err := c.repeated(t, axis, repeats)
		if err != nil {
			return nil, err
		}
		all, err := c.alike(reuse, t)
		if err != nil {
			return nil, err
		}
		r := all[0]
		if !r.d.Shape().Eq(shape) {
			return nil, fmt.Errorf("%w: the result has shape %v, and the tensor to reuse %v", ErrShape, shape, r.d.Shape())
		}
		if r.Overlaps(x.Array) {
			return nil, fmt.Errorf("%w: the tensor to reuse shares memory with the operand", ErrInvalid)
		}
		return r.d, c.repeat(reshaped(r.Array, shape), x.Array, max(axis, 0), counts)
	})
}

// repeated returns the operand of Repeat with the dimensions along which it is repeated, the
// result's shape, and the number of repeats of each element of the axis.
func (c *call) repeated(t gtensor.Tensor, axis int, repeats []int) (x operand, shape gtensor.Shape, counts []int, err error) {
	if x, err = c.operand(t); err != nil {
		return x, nil, nil, err
	}
	if axis < 0 && axis != gtensor.AllAxes {
		return x, nil, nil, fmt.Errorf("%w: %v has no axis %d", ErrShape, x.d.Shape(), axis)
	}
	if slices.ContainsFunc(repeats, func(n int) bool { return n < 0 }) {
		return x, nil, nil, fmt.Errorf("%w: repeats %v are negative", ErrInvalid, repeats)
	}
	shape, counts, _, err = x.d.Shape().Repeat(axis, slices.Clone(repeats)...)
	if err != nil {
		return x, nil, nil, fmt.Errorf("%w: %w", ErrShape, err)
	}
	if shape.TotalSize() == 0 {
		return x, nil, nil, fmt.Errorf("%w: the result would have no elements", ErrShape)
	}
	if axis == gtensor.AllAxes {
		if x.Array, err = c.dense(x.Array); err != nil {
			return x, nil, nil, err
		}
		x.Array = strided.Dense(x.Ptr, x.Size, x.Len())
	}
	// A number or a vector may be repeated along an axis that it lacks.
	for len(x.Dims) < len(shape) {
		x.Array = x.Insert(len(x.Dims), 1)
	}
	return x, shape, counts, nil
}

func (c *call) repeat(out, x strided.Array, axis int, counts []int) error {
	if n := counts[0]; !slices.ContainsFunc(counts, func(m int) bool { return m != n }) {
		// The axis is split into one of x's elements and one of their repeats.
		split := out
		split.Dims = slices.Replace(slices.Clone(out.Dims), axis, axis+1, len(counts), n)
		split.Strides = slices.Replace(slices.Clone(out.Strides), axis, axis+1, n*out.Strides[axis], out.Strides[axis])
		return c.e.kernels.Copy(split, x.Insert(axis+1, n))
	}
	at := 0
	for i, n := range counts {
		if n == 0 {
			continue
		}
		if err := c.e.kernels.Copy(out.Part(axis, at, n), x.Drop(axis, i).Insert(axis, n)); err != nil {
			return err
		}
		at += n
	}
	return nil
}
