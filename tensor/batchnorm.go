package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// BatchNormConfig configures a batch norm and names its running statistics. With Mean and Var, the
// zero value of the other fields is PyTorch's default without training.
type BatchNormConfig struct {
	Training bool
	// Mean and Var are the running statistics (channels): both or none. Their dtype is x's, or
	// float32 if x has 16 bits. Training updates them in place. Without training they normalise x.
	Mean, Var *Tensor
	Batches   *Tensor // num_batches_tracked, one int64 that training increments; may be nil
	// Momentum is the batch's share of the new running statistics; 0 means 0.1. With NaN they
	// become the mean of all Batches (momentum=None).
	Momentum float64
	Eps      float64 // added to the variance; 0: 1e-5
}

// plan checks x (n, channels, ...) and returns the plan.
func (c BatchNormConfig) plan(op string, x Shape) (*plan.BatchNorm, error) {
	if len(x) < 2 {
		return nil, fmt.Errorf("tensor: %s: %w %v: want (n, channels, ...)", op, ErrShape, x)
	}
	p := &plan.BatchNorm{N: x[0], C: x[1], Inner: elements(x[2:]), Training: c.Training, Momentum: c.Momentum, Eps: c.Eps}
	if c.Momentum == 0 {
		p.Momentum = 0.1
	}
	if c.Eps == 0 {
		p.Eps = 1e-5
	}
	switch {
	case !(p.Eps > 0 && p.Eps <= math.MaxFloat64) || math.IsInf(c.Momentum, 0):
		return nil, fmt.Errorf("tensor: %s: %w: eps %v, momentum %v: want numbers, eps not negative", op, ErrInvalid, c.Eps, c.Momentum)
	case c.Training && p.N*p.Inner < 2:
		return nil, fmt.Errorf("tensor: %s: %w %v: training needs more than one value per channel", op, ErrShape, x)
	}
	return p, nil
}

// acquire checks and holds the statistics.
func (c BatchNormConfig) acquire(rt *Runtime, op string, x *Tensor) (operands, error) {
	if (c.Mean == nil) != (c.Var == nil) || (c.Mean == nil && !c.Training) {
		return operands{}, fmt.Errorf("tensor: %s: %w: want both Mean and Var; only training may have neither", op, ErrInvalid)
	}
	if c.Training && c.Mean != nil && math.IsNaN(c.Momentum) && c.Batches == nil {
		return operands{}, fmt.Errorf("tensor: %s: %w: a momentum of NaN, the mean of all batches, needs Batches", op, ErrInvalid)
	}
	var room [3]*Tensor
	in, err := rt.acquire(op, present(room[:0], c.Mean, c.Var, c.Batches)...)
	if err != nil {
		return in, err
	}
	if c.Mean != nil {
		want := x.dtype.Computes()
		switch err = wantShape(op, x.shape[1:2], c.Mean, c.Var); {
		case c.Mean.dtype != want || c.Var.dtype != want:
			err = fmt.Errorf("tensor: %s: %w: the running statistics are %v and %v: want %v for %v", op, ErrDtype, c.Mean.dtype, c.Var.dtype, want, x.dtype)
		case err == nil && (c.Mean.shares(c.Var) || c.Mean.shares(x) || c.Var.shares(x)):
			err = overlapError(op)
		}
	}
	if b := c.Batches; err == nil && b != nil && (!b.is(Int64) || b.Elements() != 1) {
		err = fmt.Errorf("tensor: %s: %w: the number of batches is %v %v: want one int64", op, ErrDtype, b.dtype, b.shape)
	}
	return in.unless(err)
}

// BatchNorm normalises each channel of x (n, channels, ...), multiplies it by weight and adds bias
// (torch.nn.functional.batch_norm). weight and bias are (channels); either may be nil. stats are
// for [Gradients.BatchNormGrad].
//
// Training normalises by the mean and variance of each channel in the batch, and moves the running
// statistics towards them; the running variance moves towards the unbiased one. If the device
// refuses a launch, in dtypes of 16 bits the running statistics may have moved.
func (l Layers) BatchNorm(ctx context.Context, x, weight, bias *Tensor, c BatchNormConfig) (y, stats *Tensor, err error) {
	rt := l.rt
	const op = "BatchNorm"
	in, err := rt.acquireFloats(op, present([]*Tensor{x}, weight, bias)...)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	p, err := c.plan(op, x.shape)
	if err != nil {
		return nil, nil, err
	}
	if err := wantShape(op, x.shape[1:2], weight, bias); err != nil {
		return nil, nil, err
	}
	held, err := c.acquire(rt, op, x)
	if err != nil {
		return nil, nil, err
	}
	defer held.release()
	return rt.withStats(ctx, op, x, p.C, func(y, stats *Tensor) error {
		of := backend.BatchNorm
		if p.Training {
			of = backend.BatchNormTraining
			overwritten(c.Mean, c.Var, c.Batches)
		}
		return rt.planned(ctx, of, p, y, stats, x, weight, bias, c.Mean, c.Var, c.Batches)
	})
}

// BatchNormGrad returns the gradients of [Layers.BatchNorm] that want selects, and nil for the
// others. dy is the gradient of the result; x, weight, stats and c are those of the call. The
// gradient of x is written to dst, which may be dy to work in place, or nil for a new tensor. After
// an error dst is undefined.
func (d Gradients) BatchNormGrad(ctx context.Context, dst, dy, x, weight, stats *Tensor, c BatchNormConfig, want NormGrads) (dx, dw, db *Tensor, err error) {
	rt := d.rt
	const op = "BatchNormGrad"
	in, err := rt.acquireFloats(op, present([]*Tensor{dy, x}, weight)...)
	if err != nil {
		return nil, nil, nil, err
	}
	defer in.release()
	p, err := c.plan(op, x.shape)
	if err != nil {
		return nil, nil, nil, err
	}
	held, err := rt.acquireStats(op, dy, x, stats, p.C)
	if err != nil {
		return nil, nil, nil, err
	}
	defer held.release()
	if err := wantShape(op, x.shape[1:2], weight); err != nil {
		return nil, nil, nil, err
	}
	g := grads{rt: rt, ctx: ctx, op: op, dtype: x.dtype}
	dw, db = g.alloc(want.Weight, x.shape[1:2]), g.alloc(want.Bias, x.shape[1:2])
	run := func(dx *Tensor) error {
		if dy.bytes == 0 {
			return nil
		}
		return rt.planned(ctx, backend.BatchNormGrad, p, dx, dw, db, dy, x, weight, stats)
	}
	if dy.bytes == 0 && g.err == nil {
		g.err = rt.memset(op, dw, db)
	}
	switch {
	case g.err != nil:
	case want.Input:
		dx, g.err = rt.into(ctx, op, &in, dst, dy, present([]*Tensor{x}, weight), run)
		if g.err != nil {
			dx = nil // dst belongs to the caller
		}
	case dw != nil || db != nil:
		g.err = run(nil)
	}
	if err := g.done(dx, dw, db); err != nil {
		return nil, nil, nil, err
	}
	return dx, dw, db, nil
}
