package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Losses of elements x and targets t of one shape return the mean over all elements, a scalar, by
// default. They take [ReduceSum] and [ReduceNone], which gives the shape of x. The gradients take
// the same options; dloss is the gradient of the loss, in its shape.

// LossTarget selects the operand of a loss that a gradient is for.
type LossTarget bool

const (
	OfInput  LossTarget = false // of x
	OfTarget LossTarget = true  // of t
)

// MSELoss is the square of x - t (torch.nn.functional.mse_loss).
func (l Layers) MSELoss(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return l.rt.loss(ctx, "MSELoss", backend.MSELoss, x, t, 0, options)
}

// MSELossGrad is the gradient of x or t of [Layers.MSELoss].
func (d Gradients) MSELossGrad(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return d.rt.lossGrad(ctx, "MSELossGrad", backend.MSELoss, of, dloss, x, t, 0, options)
}

// L1Loss is |x - t| (torch.nn.functional.l1_loss).
func (l Layers) L1Loss(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return l.rt.loss(ctx, "L1Loss", backend.L1Loss, x, t, 0, options)
}

// L1LossGrad is the gradient of x or t of [Layers.L1Loss]: 0 where they are equal.
func (d Gradients) L1LossGrad(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return d.rt.lossGrad(ctx, "L1LossGrad", backend.L1Loss, of, dloss, x, t, 0, options)
}

// HuberLoss is half the square of x - t up to a distance of delta, and delta * (|x - t| - delta/2)
// beyond (torch.nn.functional.huber_loss, with a default delta of 1).
func (l Layers) HuberLoss(ctx context.Context, x, t *Tensor, delta float64, options ...LossOption) (*Tensor, error) {
	return l.rt.loss(ctx, "HuberLoss", backend.HuberLoss, x, t, delta, options)
}

// HuberLossGrad is the gradient of x or t of [Layers.HuberLoss].
func (d Gradients) HuberLossGrad(ctx context.Context, of LossTarget, dloss, x, t *Tensor, delta float64, options ...LossOption) (*Tensor, error) {
	return d.rt.lossGrad(ctx, "HuberLossGrad", backend.HuberLoss, of, dloss, x, t, delta, options)
}

// BCEWithLogits is the binary cross entropy of logits x and probabilities t, -t log σ(x) - (1-t)
// log σ(-x), without overflow (torch.nn.functional.binary_cross_entropy_with_logits). [Weight] and
// [PosWeight], the weights of the first term, broadcast to x.
func (l Layers) BCEWithLogits(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return l.rt.loss(ctx, "BCEWithLogits", backend.BinaryCrossEntropy, x, t, 0, options)
}

// BCEWithLogitsGrad is the gradient of x or t of [Layers.BCEWithLogits].
func (d Gradients) BCEWithLogitsGrad(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return d.rt.lossGrad(ctx, "BCEWithLogitsGrad", backend.BinaryCrossEntropy, of, dloss, x, t, 0, options)
}

// KLDivLoss is t * (log(t) - x), where x is logarithms of probabilities and t * log(t) is 0 if t is
// 0 (torch.nn.functional.kl_div). Summed with [ReduceBatchMean], it is the divergence of the
// distribution t from x. With [LogTarget] t is logarithms, too.
func (l Layers) KLDivLoss(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return l.rt.loss(ctx, "KLDivLoss", backend.KLDivLoss, x, t, 0, options)
}

// KLDivLossGrad is the gradient of x or t of [Layers.KLDivLoss]. As in PyTorch, the gradient of t
// is NaN where t is 0, unless t is logarithms.
func (d Gradients) KLDivLossGrad(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
	return d.rt.lossGrad(ctx, "KLDivLossGrad", backend.KLDivLoss, of, dloss, x, t, 0, options)
}

// lossOperands are the operands of a loss, held until release.
type lossOperands struct {
	kind           backend.Op
	x, t           *Tensor
	weight, pos    *Tensor // of x's shape, or nil
	delta, divisor float64
	each           bool

	held operands
	own  []*Tensor // weights that were broadcast or shared
}

func (p *lossOperands) release(ctx context.Context) {
	p.held.release()
	for _, w := range p.own {
		p.x.rt.parked.add(w.ReleaseContext(ctx))
	}
}

func (rt *Runtime) acquirePairs(ctx context.Context, op string, kind backend.Op, x, t *Tensor, delta float64, options []LossOption) (*lossOperands, error) {
	c := NewLossConfig(options...)
	takes := []string{}
	switch kind {
	case backend.BinaryCrossEntropy:
		takes = []string{"Weight", "PosWeight"}
	case backend.KLDivLoss:
		takes = []string{"LogTarget", "ReduceBatchMean"}
	}
	if err := c.Check(op, takes...); err != nil {
		return nil, err
	}
	if c.LogTarget {
		kind = backend.KLDivLogLoss
	}
	if kind == backend.HuberLoss && !(delta > 0 && !math.IsInf(delta, 1)) {
		return nil, fmt.Errorf("tensor: %s: %w: delta is %v: want a positive number", op, ErrInvalid, delta)
	}
	held, err := rt.acquireFloats(op, x, t)
	if err != nil {
		return nil, err
	}
	p := &lossOperands{kind: kind, x: x, t: t, delta: delta, divisor: 1, each: c.Reduction == NoReduction, held: held}
	if err = sameShape(op, x, t); err == nil {
		p.divisor, err = divisorOf(op, c.Reduction, x)
	}
	if err == nil {
		p.weight, err = p.repeated(ctx, op, c.Weight)
	}
	if err == nil {
		p.pos, err = p.repeated(ctx, op, c.PosWeight)
	}
	if err != nil {
		p.release(ctx)
		return nil, err
	}
	return p, nil
}

// divisorOf returns the number by which a reduction divides the sum of the losses of x.
func divisorOf(op string, r Reduction, x *Tensor) (float64, error) {
	switch {
	case r == MeanReduction:
		return float64(x.Elements()), nil
	case r != BatchMeanReduction:
		return 1, nil
	case len(x.shape) == 0:
		return 0, fmt.Errorf("tensor: %s: %w: a scalar has no batch: want at least one dimension for ReduceBatchMean", op, ErrShape)
	}
	return float64(x.shape[0]), nil
}

func (p *lossOperands) params(c *backend.Call, of LossTarget) {
	c.C = [2]float64{p.delta, p.divisor}
	backend.SetParams(c, plan.Loss{Each: p.each, OfTarget: bool(of)})
}

// repeated returns w in the shape of x, which the operands then own: a copy if w has another shape.
func (p *lossOperands) repeated(ctx context.Context, op string, w *Tensor) (*Tensor, error) {
	if w == nil {
		return nil, nil
	}
	rt := p.x.rt
	if err := rt.check(op, w); err != nil {
		return nil, err
	}
	if w.dtype != p.x.dtype {
		return nil, fmt.Errorf("tensor: %s: %w: the weights are %v and the elements %v", op, ErrDtype, w.dtype, p.x.dtype)
	}
	var full *Tensor
	var err error
	if slices.Equal(w.shape, p.x.shape) {
		full, err = rt.Share(ctx, w)
	} else {
		full, err = rt.BroadcastTo(ctx, w, p.x.shape...)
	}
	if err == nil {
		p.own = append(p.own, full)
	}
	return full, err
}

func (rt *Runtime) loss(ctx context.Context, op string, kind backend.Op, x, t *Tensor, delta float64, options []LossOption) (*Tensor, error) {
	p, err := rt.acquirePairs(ctx, op, kind, x, t, delta, options)
	if err != nil {
		return nil, err
	}
	defer p.release(ctx)
	var shape Shape
	if p.each {
		shape = x.shape
	}
	return rt.result(ctx, op, x.dtype.Computes(), shape, func(out *Tensor) error {
		c := rt.call(p.kind, out, p.x, p.t, p.weight, p.pos)
		c.Dtype = x.dtype
		p.params(c, OfInput)
		return rt.backend.Do(ctx, c)
	})
}

func (rt *Runtime) lossGrad(ctx context.Context, op string, kind backend.Op, of LossTarget, dloss, x, t *Tensor, delta float64,
	options []LossOption) (*Tensor, error) {
	p, err := rt.acquirePairs(ctx, op, kind, x, t, delta, options)
	if err != nil {
		return nil, err
	}
	defer p.release(ctx)
	in, err := rt.acquireLossGrad(op, x, dloss)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if p.each && !slices.Equal(dloss.shape, x.shape) || !p.each && dloss.Elements() != 1 {
		return nil, fmt.Errorf("tensor: %s: %w: the loss's gradient is %v: want the shape of the loss of %v", op, ErrShape, dloss.shape, x.shape)
	}
	return rt.result(ctx, op, x.dtype, x.shape, func(out *Tensor) error {
		c := rt.call(backend.LossGrad.Of(p.kind.Code()), out, dloss, p.x, p.t, p.weight, p.pos)
		p.params(c, of)
		return rt.backend.Do(ctx, c)
	})
}
