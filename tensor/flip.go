package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Flip returns a copy of x with the order of its elements reversed along each of the given axes
// (torch.flip). Any dtype. The gradient is flipped back.
func (rt *Runtime) Flip(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	in, err := rt.acquire("Flip", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if _, _, err := reducedShape("Flip", x.shape, axes); err != nil {
		return nil, err
	}
	shape := atLeast1d(x.shape)
	from := plan.Strides(shape)
	for _, axis := range axes {
		i, _ := axisOf("Flip", shape, axis)
		from[i] = -from[i]
	}
	return rt.result(ctx, "Flip", x.dtype, x.shape, func(out *Tensor) error {
		return rt.place(ctx, whole(out), whole(x), plan.Strides(shape), from, shape)
	})
}

// Roll returns a copy of x with its elements moved by shifts[i] along axes[i] (torch.roll):
// elements that leave a dimension at its end enter it at its beginning. Shifts along one axis add
// up. Any dtype. The gradient is rolled back. PyTorch's roll without dims is Roll of a tensor that
// [Runtime.Reshape] has made one dimension.
func (rt *Runtime) Roll(ctx context.Context, x *Tensor, shifts, axes []int) (*Tensor, error) {
	in, err := rt.acquire("Roll", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if len(shifts) != len(axes) {
		return nil, fmt.Errorf("tensor: Roll: %w: %d shifts for %d axes", ErrInvalid, len(shifts), len(axes))
	}
	by := make([]int, len(x.shape))
	for i, axis := range axes {
		if axis, err = axisOf("Roll", x.shape, axis); err != nil {
			return nil, err
		}
		if n := x.shape[axis]; n > 0 {
			by[axis] = (by[axis] + shifts[i]%n + n) % n
		}
	}
	return rt.result(ctx, "Roll", x.dtype, x.shape, func(out *Tensor) error {
		return rt.rollTo(ctx, whole(out), whole(x), x.Shape(), by, 0)
	})
}

// rollTo copies a part of the given shape, rolled along the dimensions from axis on. It copies the
// two halves of the first rolled dimension separately.
func (rt *Runtime) rollTo(ctx context.Context, dst, src part, shape, by []int, axis int) error {
	for axis < len(by) && by[axis] == 0 {
		axis++
	}
	if axis == len(by) {
		return rt.placeRows(ctx, dst, src, shape)
	}
	n := shape[axis]
	defer func() { shape[axis] = n }()
	shape[axis] = n - by[axis]
	if err := rt.rollTo(ctx, dst.from(axis, by[axis]), src, shape, by, axis+1); err != nil {
		return err
	}
	shape[axis] = by[axis]
	return rt.rollTo(ctx, dst, src.from(axis, n-by[axis]), shape, by, axis+1)
}
