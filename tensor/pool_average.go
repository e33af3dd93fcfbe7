package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// AvgPool2d returns the average of every window of x (torch.nn.functional.avg_pool2d). x is (n,
// channels, height, width) or (channels, height, width).
func (l Layers) AvgPool2d(ctx context.Context, x *Tensor, c PoolingConfig) (*Tensor, error) {
	rt := l.rt
	return rt.avgPool(ctx, "AvgPool2d", x, rt.averages(c))
}

// AvgPool2dGrad returns the gradient, of the given shape, of x in [Layers.AvgPool2d]. dy is the
// gradient of the result.
func (d Gradients) AvgPool2dGrad(ctx context.Context, dy *Tensor, shape []int, c PoolingConfig) (*Tensor, error) {
	rt := d.rt
	return rt.avgPoolGrad(ctx, "AvgPool2dGrad", dy, shape, rt.averages(c))
}

// averages plans averages over the windows of c.
func (rt *Runtime) averages(c PoolingConfig) planPooled {
	return func(op string, x Shape) (*plan.Pool, Shape, error) { return rt.planPool(op, c, false, x) }
}

func (c PoolingConfig) avgPlan(op string, x Shape) (*plan.Pool, Shape, error) {
	if c.Dilation != nil {
		return nil, nil, fmt.Errorf("tensor: %s: %w: averages take no dilation", op, ErrInvalid)
	}
	return c.plan(op, x)
}

// AdaptiveAvgPool2d returns averages of x over parts of about equal size
// (torch.nn.functional.adaptive_avg_pool2d). x is (n, channels, height, width) or (channels,
// height, width). size is the number of parts: one number for both dimensions, or two; -1 leaves a
// dimension as it is.
func (l Layers) AdaptiveAvgPool2d(ctx context.Context, x *Tensor, size ...int) (*Tensor, error) {
	return l.rt.avgPool(ctx, "AdaptiveAvgPool2d", x, adaptivePlan(size))
}

// AdaptiveAvgPool2dGrad returns the gradient, of the given shape, of x in
// [Layers.AdaptiveAvgPool2d]. dy is the gradient of the result.
func (d Gradients) AdaptiveAvgPool2dGrad(ctx context.Context, dy *Tensor, shape []int, size ...int) (*Tensor, error) {
	return d.rt.avgPoolGrad(ctx, "AdaptiveAvgPool2dGrad", dy, shape, adaptivePlan(size))
}

func adaptivePlan(size []int) func(op string, x Shape) (*plan.Pool, Shape, error) {
	return func(op string, x Shape) (*plan.Pool, Shape, error) {
		sizes, err := eachDim(op, "size", size, 2, 0, -1)
		if err != nil {
			return nil, nil, err
		}
		if len(size) == 0 || (len(x) != 3 && len(x) != 4) {
			return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v and the size %v: want 3 or 4 dimensions, and one number or two", op, ErrShape, x, size)
		}
		p, y := &plan.Pool{Planes: elements(x[:len(x)-2]), Adaptive: true}, slices.Clone(x)
		for d, n := range sizes {
			at := len(x) - 2 + d
			if n >= 0 {
				y[at] = n
			}
			p.In[d], p.Out[d] = x[at], y[at]
			if x[at] < 1 || int64(y[at])+1 > math.MaxInt/int64(x[at]) {
				return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v and the size %v: want dimensions of at least 1, and none too large", op, ErrShape, x, size)
			}
		}
		return p, y, nil
	}
}

type planPooled func(op string, x Shape) (*plan.Pool, Shape, error)

func (rt *Runtime) avgPool(ctx context.Context, op string, x *Tensor, plan planPooled) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, shape, err := plan(op, x.shape)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, x.dtype, shape, func(y *Tensor) error {
		// A plane may be large, and the kernel of sums is for many elements per result.
		if p.Adaptive && p.Out == [2]int{1, 1} {
			return rt.sumTo(ctx, y, shape, x, float64(p.In[0])*float64(p.In[1]))
		}
		return rt.planned(ctx, backend.AvgPool, p, y, x)
	})
}

func (rt *Runtime) avgPoolGrad(ctx context.Context, op string, dy *Tensor, shape []int, plan planPooled) (*Tensor, error) {
	return gradByPlan(ctx, rt, op, backend.AvgPoolGrad, dy, shape, plan)
}
