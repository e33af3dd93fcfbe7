package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Tensors are row-major, so a permutation, a range inside a dimension or a concatenation is a copy:
// one launch for each source. Views with strides would make these free, but every other operation
// more expensive, in code and in time. A copy costs memory bandwidth, and PyTorch copies as soon as
// a kernel needs consecutive elements.

// part is the part of a tensor from offset on, in elements.
type part struct {
	*Tensor
	offset int
}

// whole is a tensor from its first element on.
func whole(t *Tensor) part { return part{t, 0} }

// fewDims is the number of dimensions for which operations have buffers on their stacks.
const fewDims = 6

// ref returns the part as an operand, which ends with the tensor.
func (p part) ref() backend.Ref {
	r := p.Tensor.ref()
	skip := int64(p.offset) * int64(r.Dtype.Size())
	r.Ptr, r.Bytes, r.Host = r.Ptr+device.Ptr(skip), r.Bytes-skip, nil
	if host := p.store.host; host != nil {
		r.Host = &host[p.Tensor.offset+skip]
	}
	return r
}

// from returns the part that starts at index of dimension axis.
func (p part) from(axis, index int) part {
	p.offset += index * elements(p.shape[axis+1:])
	return p
}

// placeRows is place with the strides of the two tensors.
func (rt *Runtime) placeRows(ctx context.Context, dst, src part, shape []int) error {
	var to, from [fewDims]int
	return rt.place(ctx, dst, src, plan.AppendStrides(to[:0], dst.shape), plan.AppendStrides(from[:0], src.shape), shape)
}

// place copies a part of the given shape. to and from are the strides of its elements in dst and
// src. Both parts are inside their tensors.
func (rt *Runtime) place(ctx context.Context, dst, src part, to, from, shape []int) error {
	if elements(shape) == 0 {
		return nil
	}
	k := planKey{kind: planPlace}
	k.lists(shape)
	k.add(to...)
	k.add(from...)
	p, _ := remembered(rt, &k, func() (*plan.Placement, error) { return plan.NewPlacement(shape, to, from), nil })
	c := rt.calls.New(backend.Place, dst.dtype)
	c.Add(dst.ref())
	c.Add(src.ref())
	if rt.onOperation != nil {
		part := slices.Clone(shape) // shape may be on the caller's stack
		c.Shapes = [][]int{part, part}
	}
	c.Plan = p
	return rt.backend.Do(ctx, c)
}

// Permute returns a copy of x with its dimensions in another order (torch.permute, contiguous):
// dimension i of the result is dimension dims[i] of x. Negative dimensions count from the end. Any
// dtype.
func (rt *Runtime) Permute(ctx context.Context, x *Tensor, dims ...int) (*Tensor, error) {
	in, err := rt.acquire("Permute", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if len(dims) != len(x.shape) {
		return nil, fmt.Errorf("tensor: Permute: %w: %v has %d dimensions, and %d are given", ErrShape, x.shape, len(x.shape), len(dims))
	}
	shape, strides := make(Shape, len(dims)), make([]int, len(dims))
	seen := make([]bool, len(dims))
	all := plan.Strides(x.shape)
	for i, d := range dims {
		axis, err := axisOf("Permute", x.shape, d)
		if err != nil {
			return nil, err
		}
		if seen[axis] {
			return nil, fmt.Errorf("tensor: Permute: %w: dimension %d of %v is given twice", ErrShape, d, x.shape)
		}
		seen[axis] = true
		shape[i], strides[i] = x.shape[axis], all[axis]
	}
	return rt.result(ctx, "Permute", x.dtype, shape, func(out *Tensor) error {
		var room [fewDims]int
		return rt.place(ctx, whole(out), whole(x), plan.AppendStrides(room[:0], shape), strides, shape)
	})
}

// Narrow returns a copy of length elements of x along a dimension, from start on (torch.narrow,
// contiguous). [Runtime.Rows] is a view of the first dimension. Any dtype.
func (rt *Runtime) Narrow(ctx context.Context, x *Tensor, axis, start, length int) (*Tensor, error) {
	in, err := rt.acquire("Narrow", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if axis, err = axisOf("Narrow", x.shape, axis); err != nil {
		return nil, err
	}
	if start < 0 || length < 0 || start > x.shape[axis]-length {
		return nil, fmt.Errorf("tensor: Narrow: %w: dimension %d of %v has no %d elements from %d on", ErrShape, axis, x.shape, length, start)
	}
	var room [fewDims]int
	shape := append(Shape(room[:0]), x.shape...)
	shape[axis] = length
	return rt.result(ctx, "Narrow", x.dtype, shape, func(out *Tensor) error { return rt.placeRows(ctx, whole(out), whole(x).from(axis, start), shape) })
}

// CopyInto overwrites elements of dst along a dimension, from start on, with all elements of src
// (torch.narrow(…).copy_). src has dst's dtype, and dst's shape except in that dimension. The two
// may not overlap. Any dtype.
func (rt *Runtime) CopyInto(ctx context.Context, dst *Tensor, axis, start int, src *Tensor) error {
	const op = "CopyInto"
	in, err := rt.acquire(op, dst, src)
	if err != nil {
		return err
	}
	defer in.release()
	if axis, err = axisOf(op, dst.shape, axis); err != nil {
		return err
	}
	alike := len(src.shape) == len(dst.shape)
	for d := range dst.shape {
		alike = alike && (d == axis || src.shape[d] == dst.shape[d])
	}
	switch {
	case src.dtype != dst.dtype:
		return fmt.Errorf("tensor: %s: %w: from %v to %v", op, ErrDtype, src.dtype, dst.dtype)
	case !alike || start < 0 || start > dst.shape[axis]-src.shape[axis]:
		return fmt.Errorf("tensor: %s: %w: %v does not fit into dimension %d of %v from %d on", op, ErrShape, src.shape, axis, dst.shape, start)
	case dst.shares(src):
		return overlapError(op)
	case src.bytes == 0:
		return nil
	}
	dst.overwritten()
	return rt.placeRows(ctx, whole(dst).from(axis, start), whole(src), src.shape)
}

// Pad returns x inside a larger tensor of value: before[i] elements are added before dimension i of
// x, and after[i] after it (torch.nn.functional.pad, which takes these numbers in pairs, the last
// dimension's first). A negative number removes elements.
func (rt *Runtime) Pad(ctx context.Context, x *Tensor, value float64, before, after []int) (*Tensor, error) {
	in, err := rt.acquire("Pad", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := checkValue("Pad", value, x.dtype); err != nil {
		return nil, err
	}
	var room [2][fewDims]int
	shape, moved := append(Shape(room[0][:0]), x.shape...), append(Shape(room[1][:0]), x.shape...)
	if err := padShape("Pad", x.shape, shape, moved, before, after); err != nil {
		return nil, err
	}
	return rt.result(ctx, "Pad", x.dtype, shape, func(out *Tensor) error {
		if axis := onlyPadded(before, after); axis >= 0 && out.bytes > 0 {
			inner := elements(shape[axis+1:])
			c := rt.call(backend.Pad, out, x)
			c.C[0] = value
			backend.SetParams(c, plan.Pad{Row: shape[axis] * inner, Start: before[axis] * inner, Length: x.shape[axis] * inner})
			if done, err := rt.fused(ctx, c); done {
				return err
			}
		}
		if !slices.Equal(moved, shape) {
			if err := rt.fill(ctx, out, value); err != nil {
				return err
			}
		}
		dst, src := whole(out), whole(x)
		for i, n := range before {
			dst, src = dst.from(i, max(0, n)), src.from(i, max(0, -n))
		}
		return rt.placeRows(ctx, dst, src, moved)
	})
}

// padShape adds the padding to shape, and subtracts the elements that padding removes from moved.
// Both are x before.
func padShape(op string, x, shape, moved Shape, before, after []int) error {
	if len(before) != len(x) || len(after) != len(x) {
		return fmt.Errorf("tensor: %s: %w: %v has %d dimensions, but before has %d numbers and after %d", op, ErrShape, x, len(x), len(before), len(after))
	}
	for i := range x {
		for _, n := range []int{before[i], after[i]} {
			if n < -moved[i] || n > math.MaxInt-shape[i] {
				return fmt.Errorf("tensor: %s: %w: dimension %d of %v can't have %d elements more before and %d after", op, ErrShape, i, x, before[i], after[i])
			}
			shape[i] += n
			moved[i] += min(0, n)
		}
	}
	return nil
}

// onlyPadded returns the only dimension that gets elements. It returns -1 if there is no such
// dimension, or if a dimension loses elements.
func onlyPadded(before, after []int) int {
	axis := -1
	for i := range before {
		switch {
		case before[i] < 0 || after[i] < 0:
			return -1
		case before[i] == 0 && after[i] == 0:
		case axis >= 0:
			return -1
		default:
			axis = i
		}
	}
	return axis
}

// Cat joins tensors of one dtype along a dimension, the only one in which their shapes may differ
// (torch.cat).
func (rt *Runtime) Cat(ctx context.Context, axis int, ts ...*Tensor) (*Tensor, error) {
	if len(ts) == 0 {
		return nil, fmt.Errorf("tensor: Cat: %w: there are no tensors", ErrInvalid)
	}
	if err := rt.check("Cat", ts...); err != nil {
		return nil, err
	}
	axis, err := axisOf("Cat", ts[0].shape, axis)
	if err != nil {
		return nil, err
	}
	var room [fewDims]int
	shape := append(Shape(room[:0]), ts[0].shape...)
	shape[axis] = 0
	for i, t := range ts {
		alike := len(t.shape) == len(shape) && t.dtype == ts[0].dtype
		for d := range shape {
			alike = alike && (d == axis || t.shape[d] == shape[d])
		}
		if !alike {
			return nil, fmt.Errorf("tensor: Cat: %w: tensor 0 is %v %v and tensor %d %v %v: want them to differ only in dimension %d",
				ErrShape, ts[0].dtype, ts[0].shape, i, t.dtype, t.shape, axis)
		}
		shape[axis] += t.shape[axis]
	}
	return rt.result(ctx, "Cat", ts[0].dtype, shape, func(out *Tensor) error {
		dst := whole(out)
		for _, t := range ts {
			if err := rt.put(ctx, dst, t); err != nil {
				return err
			}
			dst = dst.from(axis, t.shape[axis])
		}
		return nil
	})
}

// put copies all of t to a part of another tensor.
func (rt *Runtime) put(ctx context.Context, dst part, t *Tensor) error {
	in, err := rt.acquire("Cat", t)
	if err != nil {
		return err
	}
	defer in.release()
	return rt.placeRows(ctx, dst, whole(t), t.shape)
}
