package tensor

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// infer returns the shape of an operation's result, and sets the plan, parameters and numbers of
// its call.
func (rt *Runtime) infer(o *opSpec, c *backend.Call, dims []int, ts []*Tensor) (shape Shape, err error) {
	c.C = o.c
	switch o.infer {
	case alike:
		for _, t := range ts[1:] {
			if err := sameShape(o.name, ts[0], t); err != nil {
				return nil, err
			}
		}
		if o.op.Family() == backend.Zip {
			c.Plan = rt.broadcast(ts[0].shape, ts[0].shape, ts[1].shape)
		}
		return ts[0].shape, nil
	case broadcast:
		if shape, err = broadcastShape(o.name, ts[0].shape, ts[1].shape); err == nil {
			c.Plan = rt.broadcast(shape, ts[0].shape, ts[1].shape)
		}
		return shape, err
	case onto:
		for _, t := range ts[1:] {
			if err := broadcastsTo(o.name, t.shape, ts[0].shape); err != nil {
				return nil, err
			}
		}
		c.Plan = plan.NewMeeting(ts[0].shape, ts[1].shape, ts[2].shape)
		return ts[0].shape, nil
	case biased:
		x, bias := ts[0].shape, ts[1].shape
		if last := len(x) - 1; last < 0 || len(bias) != 1 || bias[0] != x[last] {
			return nil, fmt.Errorf("tensor: %s: %w: %v and %v: want (rows, …, n) and (n)", o.name, ErrShape, x, bias)
		}
		return x, nil
	case repeated:
		if err := broadcastsTo(o.name, ts[0].shape, dims); err != nil {
			return nil, err
		}
		c.Plan = rt.broadcast(dims, ts[0].shape, ts[1].shape)
		return dims, nil
	case summed:
		if err := broadcastsTo(o.name, dims, ts[0].shape); err != nil {
			return nil, err
		}
		c.Plan, c.C[0] = rt.reduction(ts[0].shape, dims), 1
		return dims, nil
	case reduced:
		return rt.inferReduced(o, c, dims, ts[0])
	case reducedGrad:
		return rt.inferReducedGrad(o, c, dims, ts)
	case ordered:
		return inferOrdered(o, c, dims[0], dims[1], ts[0].shape)
	default:
		return rt.inferRows(o, c, dims, ts)
	}
}

func (rt *Runtime) inferReduced(o *opSpec, c *backend.Call, axes []int, x *Tensor) (Shape, error) {
	kept, shape, err := rt.planSum(o.name, x.shape, axes)
	switch {
	case err != nil:
		return nil, err
	case math.IsNaN(o.c[0]):
		return nil, fmt.Errorf("tensor: %s: %w: the correction is NaN", o.name, ErrInvalid)
	case o.chooses() && x.bytes == 0 && elements(kept) > 0:
		return nil, fmt.Errorf("tensor: %s: %w: %v has no elements to choose from", o.name, ErrShape, x.shape)
	}
	if o.mean {
		c.C[0] = float64(x.Elements()) / float64(elements(kept))
	}
	c.Plan = rt.reduction(x.shape, kept)
	return shape, nil
}

// chooses reports whether the result is one of the elements, so that there must be one.
func (o *opSpec) chooses() bool {
	switch o.op {
	case backend.Amax, backend.Max, backend.Amin:
		return true
	}
	return o.op == backend.VectorNorm && o.c[0] > 2
}

func (rt *Runtime) inferReducedGrad(o *opSpec, c *backend.Call, axes []int, ts []*Tensor) (Shape, error) {
	x := ts[1].shape
	kept, shape, err := rt.planSum(o.name, x, axes)
	if err != nil {
		return nil, err
	}
	for i, t := range ts {
		if i != 1 && !slices.Equal(t.shape, shape) && !slices.Equal(t.shape, kept) {
			// axes may be on the caller's stack.
			return nil, fmt.Errorf("tensor: %s: %w: the result or its gradient is %v: want %v or %v for %v over axes %v",
				o.name, ErrShape, t.shape, shape, kept, x, slices.Clone(axes))
		}
	}
	c.Plan = rt.reduction(x, kept)
	return x, nil
}

func (rt *Runtime) inferRows(o *opSpec, c *backend.Call, axes []int, ts []*Tensor) (Shape, error) {
	x := ts[0].shape
	r, err := rowsOf(o.name, x, axes)
	switch {
	case err != nil:
		return nil, err
	case o.infer == rows:
		err = sameShape(o.name, ts[0], ts[len(ts)-1])
	case r.Cols > math.MaxInt32:
		err = fmt.Errorf("tensor: %s: %w: %v: want a dimension of at most 2^31-1, as the index is int32", o.name, ErrUnsupported, x)
	case r.Cols == 0:
		err = fmt.Errorf("tensor: %s: %w: the dimension of %v is 0: there is nothing to choose from", o.name, ErrShape, x)
	default:
		last := [1]int{len(x) - 1}
		if len(axes) == 0 {
			axes = last[:]
		}
		_, x, err = rt.planSum(o.name, x, axes)
	}
	backend.SetParams(c, r)
	return x, err
}

// everything means all elements of a dimension.
const everything = -1

func inferOrdered(o *opSpec, c *backend.Call, axis, keep int, x Shape) (Shape, error) {
	rank := len(x)
	x = atLeast1d(x)
	axis, err := axisOf(o.name, x, axis)
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(x)
	if keep != everything {
		shape[axis] = keep
	}
	switch n := x[axis]; {
	case shape[axis] < 0 || shape[axis] > n:
		return nil, fmt.Errorf("tensor: %s: %w: dimension %d of %v has fewer than %d elements", o.name, ErrShape, axis, x, keep)
	case n > math.MaxInt32:
		return nil, fmt.Errorf("tensor: %s: %w: dimension %d of %v: want at most 2^31-1, as the index is int32", o.name, ErrUnsupported, axis, x)
	}
	kept := shape[axis]
	if rank == 0 { // PyTorch returns the scalar even if keep is 0
		shape, kept = Shape{}, 1
	}
	backend.SetParams(c, plan.Order{Rows: plan.Rows{Cols: x[axis], Inner: elements(x[axis+1:])}, Keep: kept, Descending: o.c[0] != 0})
	return shape, nil
}
