package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// For its gradient, a normalisation saves its argument and a tensor of float64: the mean of each
// row, and 1 over its standard deviation. (x - mean) / std is computed again. Statistics are
// computed in float64 and not rounded.

// NormConfig configures a layer, group or root-mean-square norm. Exactly one of Shape and Groups is
// given.
type NormConfig struct {
	// Shape is normalized_shape: the last dimensions of x, which are normalised together, and the
	// weights' shape.
	Shape []int
	// Groups is num_groups: the number of groups of the channels, dimension 1 of x. The weights are
	// (channels).
	Groups int
	// RMS divides by the root mean square and subtracts no mean. It is for Shape, without a bias.
	RMS bool
	// Eps is added to the variance. 0 means 1e-5 or, for RMS, the distance from 1 to the next
	// number of x's dtype, or of float32 for 16 bits.
	Eps float64
}

// planNorm checks x and returns the plan, from the cache, and the shape of the weights.
func (rt *Runtime) planNorm(op string, c NormConfig, x *Tensor) (*plan.RowNorm, Shape, error) {
	k := planKey{kind: planNorm}
	k.lists(x.shape, c.Shape)
	k.add(c.Groups, int(x.dtype.Size()))
	k.flags(c.RMS)
	k.number(math.Float64bits(c.Eps))
	return shapedBy(rt, &k, func() (*plan.RowNorm, Shape, error) {
		p, weights, err := c.plan(op, x.shape, x.dtype)
		return p, slices.Clone(weights), err
	})
}

// planWeighted is planNorm, and checks weight and bias, either of which may be nil.
func (rt *Runtime) planWeighted(op string, c NormConfig, x, weight, bias *Tensor) (*plan.RowNorm, error) {
	p, shape, err := rt.planNorm(op, c, x)
	if err != nil {
		return nil, err
	}
	if c.RMS && bias != nil {
		return nil, fmt.Errorf("tensor: %s: %w: a root-mean-square norm has no bias", op, ErrInvalid)
	}
	return p, wantShape(op, shape, weight, bias)
}

// plan checks x and returns the plan and the shape of the weights.
func (c NormConfig) plan(op string, x Shape, dtype Dtype) (*plan.RowNorm, Shape, error) {
	p := &plan.RowNorm{N: 1, Groups: 1, Per: 1, Inner: 1, Eps: c.Eps, Centered: !c.RMS}
	switch {
	case !(c.Eps >= 0 && c.Eps <= math.MaxFloat64):
		return nil, nil, fmt.Errorf("tensor: %s: %w: eps %v: want a number of at least 0", op, ErrInvalid, c.Eps)
	case c.Eps > 0:
	case !c.RMS:
		p.Eps = 1e-5
	default:
		p.Eps = dtype.Computes().Epsilon()
	}
	if c.Groups != 0 {
		if len(c.Shape) > 0 || c.RMS || c.Groups < 0 || len(x) < 2 || x[1]%c.Groups != 0 {
			return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v, with %d groups: want (n, channels, ...), groups that divide the channels, and no shape", op, ErrShape, x, c.Groups)
		}
		p.N, p.Groups, p.Per, p.Inner = x[0], c.Groups, x[1]/c.Groups, elements(x[2:])
		return p, x[1:2], nil
	}
	lead := len(x) - len(c.Shape)
	if len(c.Shape) == 0 || lead < 0 || !slices.Equal(x[lead:], c.Shape) {
		return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v, and the normalised shape %v: want the last dimensions of x, at least one", op, ErrShape, x, Shape(c.Shape))
	}
	p.N, p.Per = elements(x[:lead]), elements(c.Shape)
	return p, c.Shape, nil
}

// Normalize returns x, normalised as c configures, times weight plus bias, either of which may be
// nil (torch.nn.functional.layer_norm, group_norm and rms_norm). stats are for
// [Gradients.NormalizeGrad].
func (l Layers) Normalize(ctx context.Context, x, weight, bias *Tensor, c NormConfig) (y, stats *Tensor, err error) {
	rt := l.rt
	const op = "Normalize"
	var room [3]*Tensor
	in, err := rt.acquireFloats(op, present(append(room[:0], x), weight, bias)...)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	p, err := rt.planWeighted(op, c, x, weight, bias)
	if err != nil {
		return nil, nil, err
	}
	return rt.withStats(ctx, op, x, p.N*p.Groups, func(y, stats *Tensor) error { return rt.planned(ctx, backend.Normalize, p, y, stats, x, weight, bias) })
}

// withStats allocates a result like x, and statistics of so many rows, which run computes. Without
// elements run is not called.
func (rt *Runtime) withStats(ctx context.Context, op string, x *Tensor, rows int, run func(y, stats *Tensor) error) (y, stats *Tensor, err error) {
	return rt.pair(ctx, op, x.dtype, x.shape, Float64, []int{2, rows}, func(y, stats *Tensor) error {
		if y.bytes == 0 {
			return nil
		}
		return run(y, stats)
	})
}

// wantShape checks the shape of weight and bias or of the running statistics, which may be nil.
func wantShape(op string, shape Shape, ts ...*Tensor) error {
	for _, t := range ts {
		if t != nil && !slices.Equal(t.shape, shape) {
			return fmt.Errorf("tensor: %s: %w: a weight, bias or running statistic is %v: want %v", op, ErrShape, t.shape, shape)
		}
	}
	return nil
}

// NormGrads selects the gradients of a normalisation. Onto is for [Gradients.NormalizeGrad]: if it
// is not nil, the gradient of the input is added to it in place. It has the input's shape and
// dtype. On a GPU this is the same launch, and the gradient itself takes no memory.
type NormGrads struct {
	Input, Weight, Bias bool
	Onto                *Tensor
}

// NormalizeGrad returns the gradients of [Layers.Normalize] that want selects, and nil for the
// others. dy is the gradient of the result; x, weight, stats and c are those of the call. dx is
// want.Onto, if that is given. On a GPU its last bits may depend on whether the gradients of the
// weights come with it.
func (d Gradients) NormalizeGrad(ctx context.Context, dy, x, weight, stats *Tensor, c NormConfig, want NormGrads) (dx, dw, db *Tensor, err error) {
	rt := d.rt
	const op = "NormalizeGrad"
	var room [3]*Tensor
	in, err := rt.acquireFloats(op, present(append(room[:0], dy, x), weight)...)
	if err != nil {
		return nil, nil, nil, err
	}
	defer in.release()
	p, shape, err := rt.planNorm(op, c, x)
	if err != nil {
		return nil, nil, nil, err
	}
	held, err := rt.acquireStats(op, dy, x, stats, p.N*p.Groups)
	if err != nil {
		return nil, nil, nil, err
	}
	defer held.release()
	if err := wantShape(op, shape, weight); err != nil {
		return nil, nil, nil, err
	}
	g := grads{rt: rt, ctx: ctx, op: op, dtype: x.dtype}
	onto, adds := want.Onto, false
	if onto != nil && want.Input {
		held, err := rt.mayAddTo(op, onto, x, x, dy, weight, stats)
		if err != nil {
			return nil, nil, nil, err
		}
		defer held.release()
		adds = rt.supports(backend.NormalizeGradOnto, onto, nil, nil, dy, x, weight, stats)
	} else {
		onto = nil
	}
	dx = g.alloc(want.Input && !adds, x.shape)
	of, to := backend.NormalizeGrad, dx
	if adds {
		of, to = backend.NormalizeGradOnto, onto
	}
	dw, db = g.alloc(want.Weight, shape), g.alloc(want.Bias, shape)
	switch {
	case g.err != nil:
	case dy.bytes == 0:
		g.err = rt.memset(op, dw, db)
	case to != nil:
		g.err = rt.planned(ctx, of, p, to, dw, db, dy, x, weight, stats)
	case dw != nil || db != nil:
		g.err = rt.planned(ctx, backend.NormalizeWeightGrad, p, dw, db, dy, x, stats)
	}
	if onto != nil && g.err == nil {
		onto.overwritten()
		if !adds {
			g.err = rt.zipTo(ctx, backend.Add, onto, onto, dx)
		}
	}
	if err := g.done(dx, dw, db); err != nil {
		return nil, nil, nil, err
	}
	if onto != nil {
		rt.parked.add(dx.ReleaseContext(ctx))
		dx = onto
	}
	return dx, dw, db, nil
}

// mayAddTo checks and holds dst, to which a gradient may be added: it is like another tensor, and
// shares no memory with the tensors that are read.
func (rt *Runtime) mayAddTo(op string, dst, like *Tensor, reads ...*Tensor) (operands, error) {
	in, err := rt.acquireAlike(op, dst, like)
	if err == nil && slices.ContainsFunc(reads, func(t *Tensor) bool { return t != nil && dst.shares(t) }) {
		return in.unless(overlapError(op))
	}
	return in, err
}

func (rt *Runtime) acquireStats(op string, dy, x, stats *Tensor, rows int) (operands, error) {
	in, err := rt.acquire(op, stats)
	if err != nil {
		return in, err
	}
	if err = sameShape(op, dy, x); err == nil && (!stats.is(Float64) || !slices.Equal(stats.shape, []int{2, rows})) {
		err = fmt.Errorf("tensor: %s: %w: the statistics are %v %v: want float64 (2, %d)", op, ErrShape, stats.dtype, stats.shape, rows)
	}
	return in.unless(err)
}

// grads allocates several results, such as gradients, and keeps the first error.
type grads struct {
	rt    *Runtime
	ctx   context.Context
	op    string
	dtype Dtype
	err   error
}

// alloc allocates a result, or returns nil if it is not wanted.
func (g *grads) alloc(wanted bool, shape Shape) (t *Tensor) {
	if wanted && g.err == nil {
		t, g.err = g.rt.alloc(g.ctx, g.op, g.dtype, shape)
	}
	return t
}

// done releases the gradients if there was an error, and returns it.
func (g *grads) done(ts ...*Tensor) error {
	if g.err != nil {
		g.rt.parked.add(releaseAll(g.ctx, ts...))
	}
	return g.err
}
