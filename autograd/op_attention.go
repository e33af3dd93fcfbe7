package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// AttentionConfig configures an attention. Its zero value is PyTorch's default.
type AttentionConfig struct {
	// Causal hides from query i the keys behind key i (is_causal).
	Causal bool
	// Mask broadcasts to (…, L, S): of the operands' dtype it is added to the scores and may have a
	// gradient; of uint8 a key is seen where it is not 0 (attn_mask). Nil: all keys are seen. It
	// does not go together with Causal.
	Mask *Variable
	// Scale is the factor of the products of queries and keys; 0: 1/√E.
	Scale float64
	// GQA lets several heads of queries, dimension -3, share one of keys and values, of which there
	// are fewer (enable_gqa).
	GQA bool
}

// check is an error for what does not go together.
func (cfg AttentionConfig) check() error {
	if cfg.Causal && cfg.Mask != nil {
		return fmt.Errorf("%w: a mask and Causal: want one of them", ErrInvalid)
	}
	return nil
}

func (cfg AttentionConfig) plain() tensor.AttentionConfig {
	return tensor.AttentionConfig{Causal: cfg.Causal, Scale: cfg.Scale}
}

// mask is the inputs with the mask behind them, if there is one.
func (cfg AttentionConfig) mask(inputs ...*Variable) []*Variable {
	if cfg.Mask != nil {
		inputs = append(inputs, cfg.Mask)
	}
	return inputs
}

// ScaledDotProductAttention returns softmax(q kᵀ scale + mask) v for queries (…, L, E), keys (…, S, E) and values
// (…, S, V), without storing the scores; see [tensor.Layers.ScaledDotProductAttention].
func (t *Tape) ScaledDotProductAttention(q, k, v *Variable, cfg AttentionConfig) *Variable {
	if cfg.GQA {
		return t.groupedAttention(q, k, v, cfg)
	}
	return opAttention.Apply(t, attention{cfg.plain(), cfg.check()}, cfg.mask(q, k, v)...)
}

// attention is one use of ScaledDotProductAttention, of queries, keys, values and, if there is one,
// a mask.
type attention struct {
	cfg     tensor.AttentionConfig
	refused error
}

var opAttention = newOp[attention]("ScaledDotProductAttention")

// Forward attends, without storing the scores.
func (a *attention) Forward(c *Call) (*tensor.Tensor, error) {
	if a.refused != nil {
		return nil, a.refused
	}
	q, k, v, mask := c.Input(0), c.Input(1), c.Input(2), c.Input(3)
	y, sums, err := c.Runtime().ScaledDotProductAttention(c.Context(), q, k, v, mask, a.cfg)
	if mask != nil {
		return c.saving(y, err, q, k, v, y, sums, mask)
	}
	return c.saving(y, err, q, k, v, y, sums)
}

// Backward computes the scores again.
func (a *attention) Backward(c *Call, g *tensor.Tensor) error {
	sums, ofMask := c.Saved()[4], c.NeedsGrad(3)
	d, err := c.Runtime().ScaledDotProductAttentionGrad(c.Context(), g, c.Result(), sums, c.Input(0), c.Input(1), c.Input(2), c.Input(3), a.cfg, ofMask)
	c.doneOwn()
	c.Free(g)
	err = c.Give(0, d.Query, err)
	err = c.Give(1, d.Key, err)
	if err = c.Give(2, d.Value, err); ofMask {
		err = c.Give(3, d.Mask, err)
	}
	return err
}

// groupedAttention has a dimension more: groups of heads beside the one of keys and values that they share.
func (t *Tape) groupedAttention(q, k, v *Variable, cfg AttentionConfig) *Variable {
	const op = "ScaledDotProductAttention"
	if !t.begin(op, cfg.mask(q, k, v)...) {
		return t.inert()
	}
	qs, ks, vs := q.Shape(), k.Shape(), v.Shape()
	n := len(qs)
	if n < 3 || len(ks) != n || len(vs) != n || ks[n-3] != vs[n-3] || ks[n-3] == 0 || qs[n-3]%ks[n-3] != 0 {
		t.fail(op, fmt.Errorf("%w: queries %v, keys %v, values %v: want heads in dimension -3, of queries a multiple of the others", tensor.ErrShape, qs, ks, vs))
		return t.inert()
	}
	heads := ks[n-3]
	return t.Frame(func() *Variable {
		inner := cfg
		inner.GQA = false
		if cfg.Mask != nil && cfg.Mask.Rank() > 2 {
			inner.Mask = t.splitHeads(cfg.Mask, heads)
		}
		y := t.ScaledDotProductAttention(t.splitHeads(q, heads), t.Unsqueeze(k, n-2), t.Unsqueeze(v, n-2), inner)
		return t.Reshape(y, append(qs[:n-1], vs[n-1])...)
	})
}

// splitHeads makes dimension -3 two, of so many heads and the rest; one of 1 becomes two of 1.
func (t *Tape) splitHeads(x *Variable, heads int) *Variable {
	shape := slices.Clone(x.Shape())
	at := len(shape) - 3
	if shape[at] == 1 {
		heads = 1
	}
	if shape[at]%heads == 0 {
		shape[at] /= heads
	}
	return t.Reshape(x, slices.Insert(shape, at, heads)...)
}

// SelfAttention is the attention of sequences with themselves, in so many heads: qkv (rows, batch,
// 3n), or (batch, rows, 3n) if the batch is first, has queries, keys and values beside each other,
// as one dense layer computes them; nothing is copied to take them apart. The result is (…, n). A
// mask broadcasts to (batch, heads, rows, rows), and has no gradient here.
func (t *Tape) SelfAttention(qkv *Variable, heads int, batchFirst bool, cfg AttentionConfig) *Variable {
	if !t.begin("SelfAttention", cfg.mask(qkv)...) {
		return t.inert()
	}
	return opSelfAttention.Apply(t, selfAttention{cfg, heads, batchFirst}, cfg.mask(qkv)...)
}

// selfAttention is one use of SelfAttention, of what is beside each other and, if there is one, a
// mask.
type selfAttention struct {
	cfg        AttentionConfig
	heads      int
	batchFirst bool
}

var opSelfAttention = newOp[selfAttention]("SelfAttention")

// Forward attends, without storing the scores.
func (a *selfAttention) Forward(c *Call) (*tensor.Tensor, error) {
	if err := a.cfg.check(); err != nil {
		return nil, err
	}
	if a.cfg.GQA {
		return nil, fmt.Errorf("%w: GQA: all heads have keys and values of their own here", ErrInvalid)
	}
	x, mask := c.Input(0), c.Input(1)
	y, sums, err := c.Runtime().SelfAttention(c.Context(), x, mask, a.heads, a.batchFirst, a.cfg.plain())
	if mask != nil {
		return c.saving(y, err, x, y, sums, mask)
	}
	return c.saving(y, err, x, y, sums)
}

// Backward computes the scores again.
func (a *selfAttention) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().SelfAttentionGrad(c.Context(), g, c.Result(), c.Saved()[2], c.Input(0), c.Input(1), a.heads, a.batchFirst, a.cfg.plain())
	c.doneOwn()
	return c.GiveReplacing(0, g, d, err)
}
