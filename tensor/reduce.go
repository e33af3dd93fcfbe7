package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// Sum returns the sum of x over the given axes, which disappear from the shape; over all of them if none is
// given. Negative axes count from the end.
func (r Reductions) Sum(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.sum(ctx, "Sum", x, false, axes)
}

// Mean returns the mean of x over the given axes, as Sum does. The mean of no elements is NaN.
func (r Reductions) Mean(ctx context.Context, x *Tensor, axes ...int) (*Tensor, error) {
	return r.rt.sum(ctx, "Mean", x, true, axes)
}

func (rt *Runtime) sum(ctx context.Context, op string, x *Tensor, mean bool, axes []int) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	kept, shape, err := rt.planSum(op, x.shape, axes)
	if err != nil {
		return nil, err
	}
	divisor := 1.0
	if mean {
		divisor = float64(x.Elements()) / float64(elements(kept))
	}
	return rt.result(ctx, op, x.dtype, shape, func(out *Tensor) error { return rt.sumTo(ctx, out, kept, x, divisor) })
}

// sumTo queues the sums of x over divisor; kept is out's shape with the summed dimensions 1.
func (rt *Runtime) sumTo(ctx context.Context, out *Tensor, kept Shape, x *Tensor, divisor float64) error {
	c := rt.call(backend.Sum, out, x)
	c.Plan, c.C[0] = rt.reduction(x.shape, kept), divisor
	return rt.backend.Do(ctx, c)
}

// planSum is what reducedShape is.
func (rt *Runtime) planSum(op string, shape Shape, axes []int) (kept, without Shape, err error) {
	k := planKey{kind: planSum}
	k.lists(shape)
	k.add(axes...)
	return shapedBy(rt, &k, func() (kept, without Shape, err error) { return reducedShape(op, shape, axes) })
}

// reducedShape is shape with the axes 1, and without them.
func reducedShape(op string, shape Shape, axes []int) (kept, without Shape, err error) {
	kept = slices.Clone(shape)
	drop := make([]bool, len(shape))
	for _, a := range axes {
		i, err := axisOf(op, shape, a)
		if err != nil {
			return nil, nil, err
		}
		if drop[i] {
			return nil, nil, fmt.Errorf("tensor: %s: %w: axis %d of %v is given twice", op, ErrShape, a, shape)
		}
		drop[i] = true
	}
	without = Shape{}
	for i, d := range shape {
		if drop[i] || len(axes) == 0 {
			kept[i] = 1
		} else {
			without = append(without, d)
		}
	}
	return kept, without, nil
}

// SumTo returns the sum of x over the dimensions in which shape was broadcast to x's shape: the gradient of a
// broadcast.
func (r Reductions) SumTo(ctx context.Context, x *Tensor, shape ...int) (*Tensor, error) {
	rt := r.rt
	in, err := rt.acquireFloats("SumTo", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := broadcastsTo("SumTo", shape, x.shape); err != nil {
		return nil, err
	}
	return rt.result(ctx, "SumTo", x.dtype, shape, func(out *Tensor) error { return rt.sumTo(ctx, out, out.shape, x, 1) })
}

// BroadcastTo returns x repeated to the given shape, in memory of its own.
func (rt *Runtime) BroadcastTo(ctx context.Context, x *Tensor, shape ...int) (*Tensor, error) {
	in, err := rt.acquireFloats("BroadcastTo", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := broadcastsTo("BroadcastTo", x.shape, shape); err != nil {
		return nil, err
	}
	return rt.result(ctx, "BroadcastTo", x.dtype, shape, func(out *Tensor) error { return rt.zipTo(ctx, backend.Broadcast, out, x, x) })
}

func broadcastsTo(op string, from, to Shape) error {
	out, err := broadcastShape(op, from, to)
	if err != nil {
		return err
	}
	if !slices.Equal(out, to) {
		return fmt.Errorf("tensor: %s: %w: %v does not broadcast to %v", op, ErrShape, slices.Clone(from), slices.Clone(to))
	}
	return nil
}
