package autograd

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// AttentionWeights returns softmax(q kᵀ scale + mask), (…, L, S), the weights of
// [Tape.ScaledDotProductAttention], with dropout on a tape that trains. Before dropout the weights
// of a query add up to 1, or are 0 if it sees no key. They are stored, unlike those of an
// attention.
func (t *Tape) AttentionWeights(q, k *Variable, cfg AttentionConfig) *Variable {
	const op = "AttentionWeights"
	if !cfg.begin(t, op, q, k) {
		return t.inert()
	}
	return t.Frame(func() *Variable {
		cfg, shape := t.oneMask(op, q, cfg), q.Shape()
		if cfg.GQA {
			q, k, _, cfg = t.grouped(op, q, k, k, cfg)
		}
		if t.Err() != nil {
			return t.inert()
		}
		w := t.weigh(q, k, cfg)
		if !cfg.GQA || t.Err() != nil {
			return w
		}
		return t.Reshape(w, append(shape[:len(shape)-1], w.Shape()[w.Rank()-1])...)
	})
}

// weigh computes the weights, inside of a frame, after oneMask. Scores are scaled and masked in
// place, so that only one array of them lives beside the weights.
func (t *Tape) weigh(q, k *Variable, cfg AttentionConfig) *Variable {
	if q.Rank() < 2 || k.Rank() < 2 {
		t.fail("AttentionWeights", fmt.Errorf("%w: queries %v, keys %v: want matrices (…, L, E), (…, S, E)", tensor.ErrShape, q.Shape(), k.Shape()))
		return t.inert()
	}
	scale := cfg.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(max(1, q.Shape()[q.Rank()-1])))
	}
	k = t.firstKeys(k, cfg)
	w := t.MulScalar(t.MatMul(q, k, tensor.TransB).Once(), scale).Once()
	if cfg.Causal {
		w = t.Add(w, t.causalMask(q.Shape()[q.Rank()-2], k.Shape()[k.Rank()-2], 0, q.value.Dtype()).Once()).Once()
	}
	if cfg.Mask != nil {
		w = opMaskedSoftmax.Apply(t, maskedSoftmax{}, w, cfg.Mask)
	} else {
		w = t.Softmax(w)
	}
	if !cfg.drops(t) {
		return w
	}
	return t.Dropout(w.Once(), cfg.Dropout)
}

// firstKeys returns the keys or values in use.
func (t *Tape) firstKeys(x *Variable, cfg AttentionConfig) *Variable {
	switch n := x.Shape()[x.Rank()-2]; {
	case cfg.Keys == 0:
		return x
	case cfg.Keys > n:
		t.fail("AttentionWeights", fmt.Errorf("%w: %d of %d keys", tensor.ErrShape, cfg.Keys, n))
		return t.inert()
	}
	return t.Narrow(x, -2, 0, cfg.Keys)
}

// maskedSoftmax is the softmax of scores along the last dimension with a mask. If the mask hides a
// whole row, the row's result is 0, as in an attention that stores no weights.
type maskedSoftmax struct{}

var opMaskedSoftmax = newOp[maskedSoftmax]("AttentionWeights")

// Forward computes the softmax, and writes 0 into hidden rows, where the softmax is NaN.
func (maskedSoftmax) Forward(c *Call) (*tensor.Tensor, error) {
	rt, ctx, mask := c.Runtime(), c.Context(), c.Input(1)
	var x *tensor.Tensor
	var err error
	if mask.Dtype() == tensor.Uint8 {
		var infinite *tensor.Tensor
		if infinite, err = rt.Full(ctx, math.Inf(-1), c.Input(0).Dtype(), 1); err != nil {
			return nil, err
		}
		x, err = rt.Where(ctx, mask, c.Input(0), infinite)
		c.Free(infinite)
	} else {
		c.Overwrite(0)
		x, err = rt.Add(ctx, c.Input(0), mask)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(x.Shape(), c.Input(0).Shape()) {
		defer c.Free(x)
		return nil, fmt.Errorf("%w: the mask is %v: want it to broadcast to %v", tensor.ErrShape, mask.Shape(), c.Input(0).Shape())
	}
	y, err := c.softmaxOfSeen(x)
	return c.saving(y, err, y)
}

// softmaxOfSeen returns the softmax of x, with 0 in rows that are hidden, and frees x.
func (c *Call) softmaxOfSeen(x *tensor.Tensor) (y *tensor.Tensor, err error) {
	rt, ctx := c.Runtime(), c.Context()
	defer func() { c.Free(x) }()
	if x.Elements() == 0 {
		return rt.Softmax(ctx, x)
	}
	seen, err := c.seenRows(x)
	if err != nil {
		return nil, err
	}
	defer c.Free(seen)
	softmax, err := rt.Softmax(ctx, x)
	if err != nil {
		return nil, err
	}
	defer c.Free(softmax)
	c.Free(x)
	x = nil
	tensor.Donate(softmax)
	return rt.Where(ctx, seen, softmax, nil)
}

// seenRows marks the rows that have a score above -Inf, or NaN.
func (c *Call) seenRows(x *tensor.Tensor) (*tensor.Tensor, error) {
	rt, ctx := c.Runtime(), c.Context()
	top, err := rt.Amax(ctx, x, -1)
	if err != nil {
		return nil, err
	}
	defer c.Free(top)
	none, err := rt.Full(ctx, math.Inf(-1), x.Dtype(), 1)
	if err != nil {
		return nil, err
	}
	defer c.Free(none)
	seen, err := rt.NotEqual(ctx, top, none)
	if err != nil {
		return nil, err
	}
	defer c.Free(seen)
	return rt.Reshape(ctx, seen, append(top.Shape(), 1)...)
}

// Backward is that of a softmax, which is 0 for rows of zeros.
func (maskedSoftmax) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().SoftmaxGrad(c.Context(), g, c.Result())
	c.DoneResult()
	c.Free(g)
	if c.NeedsGrad(1) && err == nil {
		var same *tensor.Tensor
		same, err = c.Runtime().Share(c.Context(), d)
		err = c.Give(1, same, err)
	}
	return c.Give(0, d, err)
}
