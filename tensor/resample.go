package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// InterpolateConfig configures the size of the result and how its elements are computed. Each list
// has one number for every dimension that is resampled, or one for all.
type InterpolateConfig struct {
	Size        []int     // of the result; nil: from ScaleFactor
	ScaleFactor []float64 // the result's size is x's size times this, rounded down
	// Bilinear mixes four neighbours (mode="bilinear"). Without it the nearest one is taken.
	Bilinear bool
	// AlignCorners aligns the centres of the outermost elements of x and the result, instead of
	// their edges. It is for Bilinear.
	AlignCorners bool
}

// Interpolate returns x in another size (torch.nn.functional.interpolate, with
// recompute_scale_factor=None). x is (n, channels, height, width) or, without Bilinear, (n,
// channels, length). The nearest element is determined in float32, as in PyTorch.
func (l Layers) Interpolate(ctx context.Context, x *Tensor, c InterpolateConfig) (*Tensor, error) {
	return l.rt.resample(ctx, "Interpolate", x, l.rt.interpolation(c))
}

// InterpolateGrad returns the gradient, of the given shape, of x in [Layers.Interpolate]. dy is the
// gradient of the result. The gradient is the same in every run.
func (d Gradients) InterpolateGrad(ctx context.Context, dy *Tensor, shape []int, c InterpolateConfig) (*Tensor, error) {
	return d.rt.resampleGrad(ctx, "InterpolateGrad", dy, shape, d.rt.interpolation(c))
}

// ReflectionPad returns x inside a larger tensor. The other elements are those of x, mirrored at
// its first and last elements (torch.nn.functional.pad, mode="reflect"). before and after are those
// of [Runtime.Pad], and 0 except for the last two dimensions. Each is smaller than its dimension.
func (l Layers) ReflectionPad(ctx context.Context, x *Tensor, before, after []int) (*Tensor, error) {
	return l.rt.resample(ctx, "ReflectionPad", x, l.rt.edges(plan.Reflect, before, after))
}

// ReflectionPadGrad returns the gradient, of the given shape, of x in [Layers.ReflectionPad]. dy is
// the gradient of the result.
func (d Gradients) ReflectionPadGrad(ctx context.Context, dy *Tensor, shape, before, after []int) (*Tensor, error) {
	return d.rt.resampleGrad(ctx, "ReflectionPadGrad", dy, shape, d.rt.edges(plan.Reflect, before, after))
}

// ReplicationPad is [Layers.ReflectionPad], but it repeats the outermost elements of x
// (torch.nn.functional.pad, mode="replicate"). before and after may be of any size.
func (l Layers) ReplicationPad(ctx context.Context, x *Tensor, before, after []int) (*Tensor, error) {
	return l.rt.resample(ctx, "ReplicationPad", x, l.rt.edges(plan.Replicate, before, after))
}

// ReplicationPadGrad returns the gradient, of the given shape, of x in [Layers.ReplicationPad]. dy
// is the gradient of the result.
func (d Gradients) ReplicationPadGrad(ctx context.Context, dy *Tensor, shape, before, after []int) (*Tensor, error) {
	return d.rt.resampleGrad(ctx, "ReplicationPadGrad", dy, shape, d.rt.edges(plan.Replicate, before, after))
}

type planResampled func(op string, x Shape) (*plan.Resample, Shape, error)

func (rt *Runtime) resample(ctx context.Context, op string, x *Tensor, of planResampled) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, shape, err := of(op, x.shape)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, x.dtype, shape, func(y *Tensor) error { return rt.planned(ctx, backend.Resample, p, y, x) })
}

func (rt *Runtime) resampleGrad(ctx context.Context, op string, dy *Tensor, shape []int, of planResampled) (*Tensor, error) {
	return gradByPlan(ctx, rt, op, backend.ResampleGrad, dy, shape, of)
}

// interpolation returns the function that plans c.
func (rt *Runtime) interpolation(c InterpolateConfig) planResampled {
	return func(op string, x Shape) (*plan.Resample, Shape, error) {
		k := planKey{kind: planInterpolation}
		k.lists(x, c.Size)
		for _, f := range c.ScaleFactor {
			k.number(math.Float64bits(f))
		}
		k.flags(c.Bilinear, c.AlignCorners)
		return shapedBy(rt, &k, func() (*plan.Resample, Shape, error) { return c.plan(op, x) })
	}
}

func (c InterpolateConfig) plan(op string, x Shape) (*plan.Resample, Shape, error) {
	dims := len(x) - 2
	if dims != 2 && (dims != 1 || c.Bilinear) {
		return nil, nil, fmt.Errorf("tensor: %s: %w %v: want (n, channels, height, width), or (n, channels, length) without Bilinear", op, ErrShape, x)
	}
	if (len(c.Size) == 0) == (len(c.ScaleFactor) == 0) || c.AlignCorners && !c.Bilinear {
		return nil, nil, fmt.Errorf("tensor: %s: %w: size %v, scale factors %v: want one of them, and AlignCorners with Bilinear alone", op, ErrInvalid, c.Size, c.ScaleFactor)
	}
	size, factor, err := c.sizes(op, x[2:])
	if err != nil {
		return nil, nil, err
	}
	p, y := &plan.Resample{Planes: x[0] * x[1]}, slices.Clone(x)
	// For (n, channels, length).
	p.Axes[0] = plan.Axis{Sampling: plan.Nearest, In: 1, Out: 1, Step: 1}
	for d := range dims {
		in, out := x[2+d], size[d]
		if in < 1 {
			return nil, nil, fmt.Errorf("tensor: %s: %w %v: want at least one element in each plane", op, ErrShape, x)
		}
		sampling, step, shift := plan.Nearest, float64(in)/float64(out), 0.0
		if factor[d] > 0 {
			step = 1 / factor[d]
		}
		if c.Bilinear {
			sampling, shift = plan.Linear, step/2-0.5
		}
		if c.AlignCorners {
			step, shift = float64(in-1)/float64(max(1, out-1)), 0
			if out == 1 {
				step = 0
			}
		}
		y[2+d], p.Axes[2-dims+d] = out, plan.Axis{Sampling: sampling, In: in, Out: out, Step: step, Shift: shift}
	}
	return p, y, nil
}

// sizes returns the sizes of the result's last dimensions, for x's, and the scale factors, 0 for
// none.
func (c InterpolateConfig) sizes(op string, x []int) (size [2]int, factor [2]float64, err error) {
	if len(c.Size) > 0 {
		size, err = eachDim(op, "size", c.Size, len(x), 1, 1)
		return size, factor, err
	}
	if len(c.ScaleFactor) != 1 && len(c.ScaleFactor) != len(x) {
		return size, factor, fmt.Errorf("tensor: %s: %w: scale factors %v: want one number, or %d", op, ErrInvalid, c.ScaleFactor, len(x))
	}
	for d, n := range x {
		f := c.ScaleFactor[d%len(c.ScaleFactor)]
		out := math.Floor(float64(n) * f)
		if !(out >= 1 && out <= math.MaxInt32) && n > 0 {
			return size, factor, fmt.Errorf("tensor: %s: %w: scale factors %v of %v: want sizes of at least 1, and below 2^31", op, ErrInvalid, slices.Clone(c.ScaleFactor), slices.Clone(x))
		}
		size[d], factor[d] = int(out), f
	}
	return size, factor, nil
}

// edges returns the function that plans a padding of the last two dimensions with elements of x.
func (rt *Runtime) edges(sampling plan.Sampling, before, after []int) planResampled {
	return func(op string, x Shape) (*plan.Resample, Shape, error) {
		k := planKey{kind: planEdges}
		k.lists(x, before, after)
		k.add(int(sampling))
		return shapedBy(rt, &k, func() (*plan.Resample, Shape, error) { return edgePlan(op, sampling, x, before, after) })
	}
}

func edgePlan(op string, sampling plan.Sampling, x Shape, before, after []int) (*plan.Resample, Shape, error) {
	y := slices.Clone(x)
	if err := padShape(op, x, y, slices.Clone(x), before, after); err != nil {
		return nil, nil, err
	}
	whole := plan.Axis{Sampling: sampling, In: 1, Out: 1, Step: 1} // for a dimension that x lacks
	p := &plan.Resample{Planes: 1, Axes: [2]plan.Axis{whole, whole}}
	for i, n := range x {
		d := i - len(x) + 2
		if d < 0 {
			if p.Planes *= n; before[i] != 0 || after[i] != 0 {
				return nil, nil, fmt.Errorf("tensor: %s: %w: %v can't have %v elements more before and %v after: want 0 except for the last two dimensions", op, ErrShape, x, slices.Clone(before), slices.Clone(after))
			}
			continue
		}
		most := n - 1
		if sampling == plan.Replicate && n > 0 {
			most = math.MaxInt
		}
		if most := max(0, most); before[i] > most || after[i] > most {
			return nil, nil, fmt.Errorf("tensor: %s: %w: dimension %d of %v has too few elements for %d more before and %d after", op, ErrShape, i, x, before[i], after[i])
		}
		p.Axes[d] = plan.Axis{Sampling: sampling, In: n, Out: y[i], Step: 1, Shift: float64(-before[i])}
	}
	return p, y, nil
}
