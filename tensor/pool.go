package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// PoolingConfig configures the window of a pooling. Each list has one number for both dimensions,
// or two: height and width.
type PoolingConfig struct {
	Kernel   []int // kernel_size: the size of the window
	Stride   []int // nil: the window's size
	Padding  []int // on both sides, at most half of the window; nil: 0
	Dilation []int // of MaxPool2d; nil: 1
	// Ceil is ceil_mode: windows that end outside count if they begin before the end padding.
	Ceil           bool
	ExcludePadding bool // count_include_pad=False: averages count only elements of x
	Divisor        int  // divisor_override: the divisor of averages; 0: the number of elements
}

// planPool plans a pooling of x, of the greatest elements or of averages, and returns the result's
// shape.
func (rt *Runtime) planPool(op string, c PoolingConfig, greatest bool, x Shape) (*plan.Pool, Shape, error) {
	k := planKey{kind: planPooling}
	k.lists(x, c.Kernel, c.Stride, c.Padding, c.Dilation)
	k.add(c.Divisor)
	k.flags(c.Ceil, c.ExcludePadding, greatest)
	return shapedBy(rt, &k, func() (*plan.Pool, Shape, error) {
		if greatest {
			return c.maxPlan(op, x)
		}
		return c.avgPlan(op, x)
	})
}

// plan checks x, whose last two dimensions are pooled, and returns the plan and the result's shape.
func (c PoolingConfig) plan(op string, x Shape) (*plan.Pool, Shape, error) {
	if len(x) != 3 && len(x) != 4 {
		return nil, nil, fmt.Errorf("tensor: %s: %w %v: want (n, channels, height, width) or (channels, height, width)", op, ErrShape, x)
	}
	if len(c.Kernel) == 0 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: Kernel is empty: want the size of the window", op, ErrInvalid)
	}
	window, err := eachDim(op, "window", c.Kernel, 2, 1, 1)
	if err != nil {
		return nil, nil, err
	}
	stride := window
	if c.Stride != nil {
		if stride, err = eachDim(op, "stride", c.Stride, 2, 1, 1); err != nil {
			return nil, nil, err
		}
	}
	padding, err := eachDim(op, "padding", c.Padding, 2, 0, 0)
	if err != nil {
		return nil, nil, err
	}
	dilation, err := eachDim(op, "dilation", c.Dilation, 2, 1, 1)
	if err != nil {
		return nil, nil, err
	}
	p := &plan.Pool{Planes: elements(x[:len(x)-2]), ExcludePadding: c.ExcludePadding, HasDivisor: c.Divisor != 0, Divisor: c.Divisor}
	y := slices.Clone(x)
	for d := range 2 {
		size, span, step := int64(x[len(x)-2+d]), int64(dilation[d])*int64(window[d]-1)+1, int64(stride[d])
		if int64(padding[d]) > span/2 {
			return nil, nil, fmt.Errorf("tensor: %s: %w: padding %v: want at most half of the window, %d", op, ErrInvalid, padding, span/2)
		}
		out := size + 2*int64(padding[d]) - span
		if c.Ceil {
			out += step - 1
		}
		if size < 1 || out < 0 {
			return nil, nil, fmt.Errorf("tensor: %s: %w %v: a window of %v with padding %v and dilation %v does not fit", op, ErrShape, x, window, padding, dilation)
		}
		out = out/step + 1
		if c.Ceil && (out-1)*step >= size+int64(padding[d]) {
			out--
		}
		y[len(y)-2+d] = int(out)
		p.In[d], p.Out[d], p.Window[d], p.Stride[d], p.Pad[d], p.Dilation[d] = int(size), int(out), window[d], stride[d], padding[d], dilation[d]
	}
	return p, y, nil
}

// MaxPool2d returns the greatest element of every window of x (torch.nn.functional.max_pool2d). x
// is (n, channels, height, width) or (channels, height, width). indices, int32, are the row-major
// indices of these elements in their channel's plane, for [Gradients.MaxPool2dGrad]. Of several
// equal elements the first is taken; NaN is greater than everything. A plane has less than 2^31
// elements, and no window may lie in the padding alone.
func (l Layers) MaxPool2d(ctx context.Context, x *Tensor, c PoolingConfig) (y, indices *Tensor, err error) {
	rt := l.rt
	const op = "MaxPool2d"
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	p, shape, err := rt.planPool(op, c, true, x.shape)
	if err != nil {
		return nil, nil, err
	}
	return rt.pair(ctx, op, x.dtype, shape, Int32, shape, func(y, indices *Tensor) error { return rt.planned(ctx, backend.MaxPool, p, y, indices, x) })
}

func (c PoolingConfig) maxPlan(op string, x Shape) (*plan.Pool, Shape, error) {
	if c.ExcludePadding || c.Divisor != 0 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: ExcludePadding and Divisor are for averages", op, ErrInvalid)
	}
	p, shape, err := c.plan(op, x)
	if err != nil {
		return nil, nil, err
	}
	if float64(p.In[0])*float64(p.In[1]) > math.MaxInt32 {
		return nil, nil, fmt.Errorf("tensor: %s: %w %v: want planes of less than 2^31 elements", op, ErrShape, x)
	}
	for d := range 2 {
		// Windows that begin in the padding may step over a small plane.
		for i := 0; i < p.Out[d] && i*p.Stride[d] < p.Pad[d]; i++ {
			if p.First(d, i) >= p.In[d] {
				return nil, nil, fmt.Errorf("tensor: %s: %w %v: with padding %d and dilation %d, window %d covers none of the %d elements", op, ErrShape, x, p.Pad[d], p.Dilation[d], i, p.In[d])
			}
		}
	}
	return p, shape, nil
}

// MaxPool2dGrad returns the gradient, of the given shape, of x in [Layers.MaxPool2d]. dy is the
// gradient of the result, and indices are those that MaxPool2d returned for the same configuration.
func (d Gradients) MaxPool2dGrad(ctx context.Context, dy, indices *Tensor, shape []int, c PoolingConfig) (*Tensor, error) {
	rt := d.rt
	const op = "MaxPool2dGrad"
	in, err := rt.acquire(op, dy, indices)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if !dy.dtype.Float() || !indices.is(Int32) {
		return nil, fmt.Errorf("tensor: %s: %w: dy is %v and the indices %v: want a floating-point dtype, and int32", op, ErrDtype, dy.dtype, indices.dtype)
	}
	if _, err := byteSize(op, dy.dtype, shape); err != nil {
		return nil, err
	}
	p, out, err := rt.planPool(op, c, true, shape)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(dy.shape, out) || !slices.Equal(indices.shape, out) {
		return nil, fmt.Errorf("tensor: %s: %w: dy is %v and the indices %v: the result for %v is %v", op, ErrShape, dy.shape, indices.shape, Shape(slices.Clone(shape)), out)
	}
	return rt.poolGrad(ctx, op, dy, shape, func(dx *Tensor) error { return rt.planned(ctx, backend.MaxPoolGrad, p, dx, dy, indices) })
}

// poolGrad returns the gradient that run computes, or zeros if dy has no elements.
func (rt *Runtime) poolGrad(ctx context.Context, op string, dy *Tensor, shape []int, run func(dx *Tensor) error) (*Tensor, error) {
	return rt.result(ctx, op, dy.dtype, shape, func(dx *Tensor) error {
		if dy.bytes == 0 {
			return rt.memset(op, dx)
		}
		return run(dx)
	})
}

// gradByPlan computes the gradient, of the given shape, of an operation's argument with the
// operation grad. plan plans it, and returns the shape of the result, which dy must have.
func gradByPlan[P any](ctx context.Context, rt *Runtime, op string, grad backend.Op, dy *Tensor, shape []int, plan func(op string, x Shape) (*P, Shape, error)) (*Tensor, error) {
	in, err := rt.acquireFloats(op, dy)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if _, err := byteSize(op, dy.dtype, shape); err != nil {
		return nil, err
	}
	p, out, err := plan(op, shape)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(dy.shape, out) {
		return nil, fmt.Errorf("tensor: %s: %w: dy is %v: the result for %v is %v", op, ErrShape, dy.shape, Shape(slices.Clone(shape)), out)
	}
	return rt.poolGrad(ctx, op, dy, shape, func(dx *Tensor) error { return rt.planned(ctx, grad, p, dx, dy) })
}
