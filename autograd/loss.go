package autograd

import (
	"context"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// MSELoss returns the mean of (x - target)² (torch.nn.functional.mse_loss). Options are
// [tensor.ReduceSum] and [tensor.ReduceNone]. x and target are broadcast after NumPy's rules, and
// both may need gradients, here and for L1Loss and HuberLoss. If one of them is float32, those of
// 16 bits are cast to it, so that a target need not be rounded.
func (t *Tape) MSELoss(x, target *Variable, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("MSELoss", x, target, options, (*tensor.Runtime).MSELoss, (*tensor.Runtime).MSELossGrad)
}

// L1Loss returns the mean of |x - target| (torch.nn.functional.l1_loss), with the options of MSELoss.
func (t *Tape) L1Loss(x, target *Variable, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("L1Loss", x, target, options, (*tensor.Runtime).L1Loss, (*tensor.Runtime).L1LossGrad)
}

// HuberLoss returns the mean of half the square of x - target up to a distance of delta, and of delta * (|x - target| - delta/2)
// beyond (torch.nn.functional.huber_loss, whose delta is 1), with the options of MSELoss.
func (t *Tape) HuberLoss(x, target *Variable, delta float64, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("HuberLoss", x, target, options,
		func(rt *tensor.Runtime, ctx context.Context, x, target *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error) {
			return rt.HuberLoss(ctx, x, target, delta, options...)
		},
		func(rt *tensor.Runtime, ctx context.Context, of tensor.LossTarget, g, x, target *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error) {
			return rt.HuberLossGrad(ctx, of, g, x, target, delta, options...)
		})
}

// BCEWithLogits returns the mean binary cross entropy of logits x and the probabilities target, of one shape
// (torch.nn.functional.binary_cross_entropy_with_logits). Options are [tensor.ReduceSum], [tensor.ReduceNone],
// [tensor.Weight] and [tensor.PosWeight]; weights are shared like an [Tape.Input].
func (t *Tape) BCEWithLogits(x, target *Variable, options ...tensor.LossOption) *Variable {
	return t.loss("BCEWithLogits", x, target, options, (*tensor.Runtime).BCEWithLogits, (*tensor.Runtime).BCEWithLogitsGrad)
}

type (
	lossFunc     func(rt *tensor.Runtime, ctx context.Context, x, target *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
	lossGradient func(rt *tensor.Runtime, ctx context.Context, of tensor.LossTarget, g, x, target *tensor.Tensor, options ...tensor.LossOption) (*tensor.Tensor, error)
)

// broadcastLoss is loss for operands of two shapes.
func (t *Tape) broadcastLoss(op string, x, target *Variable, options []tensor.LossOption, f lossFunc, grad lossGradient) *Variable {
	if x == nil || target == nil || slices.Equal(x.Shape(), target.Shape()) {
		return t.loss(op, x, target, options, f, grad)
	}
	return t.Frame(func() *Variable {
		shape := broadcast(x.Shape(), target.Shape())
		return t.loss(op, t.BroadcastTo(x, shape...), t.BroadcastTo(target, shape...), options, f, grad)
	})
}

// broadcast is the shape that two broadcast to, or one that one of them does not broadcast to.
func broadcast(a, b []int) []int {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	lead := len(a) - len(b)
	for i, d := range b {
		if out[lead+i] == 1 {
			out[lead+i] = d
		}
	}
	return out
}

// BroadcastTo returns x repeated to the given shape (torch.broadcast_to), in memory of its own.
func (t *Tape) BroadcastTo(x *Variable, shape ...int) *Variable {
	return t.Func("BroadcastTo", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return t.rt.BroadcastTo(t.ctx, c.Input(0), shape...)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(g, nil) // the tape sums it
	})
}

func (t *Tape) loss(op string, x, target *Variable, options []tensor.LossOption, f lossFunc, grad lossGradient) *Variable {
	cfg := tensor.NewLossConfig(options...)
	if x != nil && target != nil && mixed([]*tensor.Tensor{x.value, target.value}, cfg.Weight, cfg.PosWeight) && t.begin(op, x, target) {
		return t.Frame(func() *Variable {
			return t.loss(op, t.Cast(x, tensor.Float32), t.Cast(target, tensor.Float32), options, f, grad)
		})
	}
	return t.Func(op, []*Variable{x, target}, func(c *Call) (*tensor.Tensor, error) {
		c.Save(c.Input(0), c.Input(1))
		if c.NeedsGrads() {
			for _, w := range []**tensor.Tensor{&cfg.Weight, &cfg.PosWeight} {
				if *w == nil {
					continue
				}
				t.bring(*w)
				share, err := t.rt.Share(t.ctx, *w) // the caller may release its own
				if err != nil {
					return nil, err
				}
				*w = share
				c.Save(share)
			}
		}
		return f(t.rt, t.ctx, c.Input(0), c.Input(1), cfg.Option())
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		grads := make([]*tensor.Tensor, 2)
		for i, of := range []tensor.LossTarget{tensor.OfInput, tensor.OfTarget} {
			if !c.NeedsGrad(i) {
				continue
			}
			var err error
			if grads[i], err = grad(t.rt, t.ctx, of, g, c.Input(0), c.Input(1), cfg.Option()); err != nil {
				return nil, err
			}
		}
		return grads, nil
	})
}
