package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// MSELoss returns the mean of (x - target)² (torch.nn.functional.mse_loss). Options are
// [tensor.ReduceSum] and [tensor.ReduceNone]. x and target are broadcast after NumPy's rules, and
// both may need gradients, here and for L1Loss and HuberLoss. If only one of them is float32, the
// other one of 16 bits is upcast, so that a target need not be rounded.
func (t *Tape) MSELoss(x *Variable, target Target, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("MSELoss", x, target, loss{kind: mse, cfg: tensor.NewLossConfig(options...)})
}

// L1Loss returns the mean of |x - target| (torch.nn.functional.l1_loss), with the options of
// MSELoss.
func (t *Tape) L1Loss(x *Variable, target Target, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("L1Loss", x, target, loss{kind: l1, cfg: tensor.NewLossConfig(options...)})
}

// HuberLoss returns the mean of half the square of x - target up to a distance of delta, and of
// delta * (|x - target| - delta/2) beyond (torch.nn.functional.huber_loss, whose delta is 1), with
// the options of MSELoss.
func (t *Tape) HuberLoss(x *Variable, target Target, delta float64, options ...tensor.LossOption) *Variable {
	return t.broadcastLoss("HuberLoss", x, target, loss{kind: huber, delta: delta, cfg: tensor.NewLossConfig(options...)})
}

// BCEWithLogits returns the mean binary cross entropy of logits x and the probabilities target, of
// one shape (torch.nn.functional.binary_cross_entropy_with_logits). Options are [tensor.ReduceSum],
// [tensor.ReduceNone], [tensor.Weight] and [tensor.PosWeight]; weights are shared like a
// [Tape.Input].
func (t *Tape) BCEWithLogits(x *Variable, target Target, options ...tensor.LossOption) *Variable {
	return t.pairLoss("BCEWithLogits", x, target, loss{kind: bce, cfg: tensor.NewLossConfig(options...)})
}

// KLDivLoss returns the mean of target * (log(target) - x) for logarithms x of probabilities, of
// one shape (torch.nn.functional.kl_div). Options are [tensor.ReduceSum], [tensor.ReduceNone],
// [tensor.ReduceBatchMean], which is the divergence of rows, and [tensor.LogTarget]. Both may need
// gradients. As in PyTorch, the gradient of a target of 0 is NaN, unless the target is a logarithm.
func (t *Tape) KLDivLoss(x *Variable, target Target, options ...tensor.LossOption) *Variable {
	return t.pairLoss("KLDivLoss", x, target, loss{kind: kl, cfg: tensor.NewLossConfig(options...)})
}

// pairLoss is loss for operands of one shape.
func (t *Tape) pairLoss(op string, x *Variable, target Target, l loss) *Variable {
	y, own := t.target(op, target)
	if own {
		defer y.Release()
	}
	return t.loss(op, x, y, l)
}

// broadcastLoss is loss for operands of two shapes.
func (t *Tape) broadcastLoss(op string, x *Variable, target Target, l loss) *Variable {
	y, own := t.target(op, target)
	if own {
		defer y.Release()
	}
	if x == nil || y == nil || slices.Equal(x.Shape(), y.Shape()) {
		return t.loss(op, x, y, l)
	}
	return t.Frame(func() *Variable {
		shape := broadcast(x.Shape(), y.Shape())
		return t.loss(op, t.BroadcastTo(x, shape...), t.BroadcastTo(y, shape...), l)
	})
}

// broadcast returns the shape to which a and b broadcast. If there is none, at least one of them
// does not broadcast to the result.
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

func (t *Tape) loss(op string, x, target *Variable, l loss) *Variable {
	if x != nil && target != nil && mixed([]*tensor.Tensor{x.value, target.value}, l.cfg.Weight, l.cfg.PosWeight) && t.begin(op, x, target) {
		return t.Frame(func() *Variable {
			return t.loss(op, t.Cast(x, tensor.Float32), t.Cast(target, tensor.Float32), l)
		})
	}
	return opLoss.applyAs(op, t, &l, x, target)
}

// loss is one use of a loss, of x and target.
type loss struct {
	kind  lossKind
	delta float64
	cfg   tensor.LossConfig
}

func (*loss) borrows() {}

type lossKind uint8

const (
	mse lossKind = iota
	l1
	huber
	bce
	kl
)

var opLoss = newOp[loss]("Loss")

// Forward computes the loss. It shares the weights, because the caller may release them.
func (l *loss) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(0), c.Input(1))
	if c.NeedsGrads() {
		for _, w := range []**tensor.Tensor{&l.cfg.Weight, &l.cfg.PosWeight} {
			if *w == nil {
				continue
			}
			c.tape.bring(*w)
			share, err := c.Runtime().Share(c.Context(), *w)
			if err != nil {
				return nil, err
			}
			*w = share
			c.Save(share)
		}
	}
	rt, ctx, x, target, options := c.Runtime(), c.Context(), c.Input(0), c.Input(1), l.cfg.Option()
	switch l.kind {
	case mse:
		return rt.MSELoss(ctx, x, target, options)
	case l1:
		return rt.L1Loss(ctx, x, target, options)
	case huber:
		return rt.HuberLoss(ctx, x, target, l.delta, options)
	case kl:
		return rt.KLDivLoss(ctx, x, target, options)
	}
	return rt.BCEWithLogits(ctx, x, target, options)
}

// Backward gives x and the target their gradients.
func (l *loss) Backward(c *Call, g *tensor.Tensor) error {
	for i, of := range []tensor.LossTarget{tensor.OfInput, tensor.OfTarget} {
		if !c.NeedsGrad(i) {
			continue
		}
		d, err := l.grad(c, of, g)
		if err := c.Give(i, d, err); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}

func (l *loss) grad(c *Call, of tensor.LossTarget, g *tensor.Tensor) (*tensor.Tensor, error) {
	rt, ctx, x, target, options := c.Runtime(), c.Context(), c.Input(0), c.Input(1), l.cfg.Option()
	switch l.kind {
	case mse:
		return rt.MSELossGrad(ctx, of, g, x, target, options)
	case l1:
		return rt.L1LossGrad(ctx, of, g, x, target, options)
	case huber:
		return rt.HuberLossGrad(ctx, of, g, x, target, l.delta, options)
	case kl:
		return rt.KLDivLossGrad(ctx, of, g, x, target, options)
	}
	return rt.BCEWithLogitsGrad(ctx, of, g, x, target, options)
}

// mixed reports whether an operand has a narrow dtype, and another operand or a weight has its wide
// dtype. nil weights have neither.
func mixed(operands []*tensor.Tensor, weights ...*tensor.Tensor) bool {
	of := func(ts []*tensor.Tensor, d tensor.Dtype) bool {
		return slices.ContainsFunc(ts, func(x *tensor.Tensor) bool { return x != nil && x.Dtype() == d })
	}
	return slices.ContainsFunc(operands, func(x *tensor.Tensor) bool {
		wide := x.Dtype().Wide()
		return wide != 0 && (of(operands, wide) || of(weights, wide))
	})
}
