package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// BatchNormConfig is a batch norm and what it keeps. The zero value, with statistics, is PyTorch's default: it does not
// train.
type BatchNormConfig struct {
	Training bool
	// Mean and Var are the running statistics (channels), of x's dtype, or float32 for 16 bits:
	// both or none. Training updates them in place; without training they are what x is normalised
	// by.
	Mean, Var *Tensor
	Batches   *Tensor // num_batches_tracked, a scalar of int64, which training counts up; may be nil
	Momentum  float64 // the batch's share of the new running statistics; 0: 0.1; NaN: they become the mean of all Batches (momentum=None)
	Eps       float64 // what is added to the variance; 0: 1e-5
}

// plan checks x, whose channels are dimension 1.
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
		return nil, fmt.Errorf("tensor: %s: %w %v: training takes more than one value of each channel", op, ErrShape, x)
	}
	return p, nil
}

// acquire checks and holds the statistics.
func (c BatchNormConfig) acquire(rt *Runtime, op string, x *Tensor) (operands, error) {
	if (c.Mean == nil) != (c.Var == nil) || (c.Mean == nil && !c.Training) {
		return operands{}, fmt.Errorf("tensor: %s: %w: want running statistics, Mean and Var, or none to train without", op, ErrInvalid)
	}
	if c.Training && c.Mean != nil && math.IsNaN(c.Momentum) && c.Batches == nil {
		return operands{}, fmt.Errorf("tensor: %s: %w: the mean of all batches takes their number", op, ErrInvalid)
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

// BatchNorm returns x (n, channels, ...), each channel normalised, times weight plus bias
// (channels), either of which may be nil (torch.nn.functional.batch_norm), and statistics for
// [Gradients.BatchNormGrad]. Training takes the mean and the variance of each channel in the batch,
// and moves the running ones towards them, the variance's unbiased. In dtypes of 16 bits they may
// have moved if the device refuses a launch.
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

// BatchNormGrad returns the gradients of [Layers.BatchNorm] that are wanted, and nil for the
// others: dy is that of the result, and x, weight, stats and c are as there. That of x goes to dst,
// which may be dy to work in place, or nil for a new tensor. After an error dst is undefined.
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
		dx, g.err = rt.into(ctx, op, dst, dy, present([]*Tensor{x}, weight), run)
		if g.err != nil {
			dx = nil // dst is the caller's
		}
	case dw != nil || db != nil:
		g.err = run(nil)
	}
	if err := g.done(dx, dw, db); err != nil {
		return nil, nil, nil, err
	}
	return dx, dw, db, nil
}
