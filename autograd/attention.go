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
	// Mask broadcasts to (…, L, S): of the operands' dtype it is added to the scores and may have a gradient; of uint8 a key
	// is seen where it is not 0 (attn_mask). Nil: all keys are seen. It does not go together with Causal.
	Mask *Variable
	// Scale is the factor of the products of queries and keys; 0: 1/√E.
	Scale float64
	// GQA lets several heads of queries, dimension -3, share one of keys and values, of which there are fewer (enable_gqa).
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
	const op = "ScaledDotProductAttention"
	if !t.begin(op, cfg.mask(q, k, v)...) {
		return t.inert()
	}
	if cfg.GQA {
		return t.groupedAttention(q, k, v, cfg)
	}
	a := t.attentions.take()
	a.cfg = cfg
	return t.apply(op, a, &a.Call, cfg.mask(q, k, v), true)
}

// attention is one use of ScaledDotProductAttention, of queries, keys and values.
type attention struct {
	Call
	cfg AttentionConfig
}

func (a *attention) forward() (*tensor.Tensor, error) {
	if err := a.cfg.check(); err != nil {
		return nil, err
	}
	t, q, k, v := a.tape, a.Input(0), a.Input(1), a.Input(2)
	y, sums, err := t.rt.ScaledDotProductAttention(t.ctx, q, k, v, a.cfg.Mask.tensor(), a.cfg.plain())
	if err == nil {
		a.Save(q, k, v, y, sums)
		a.saveMask(a.cfg)
	}
	return y, err
}

func (a *attention) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t, y, sums := a.tape, a.Saved()[3], a.Saved()[4]
	ofMask := a.cfg.Mask != nil && a.cfg.Mask.needsGrad
	d, err := t.rt.ScaledDotProductAttentionGrad(t.ctx, g, y, sums, a.Input(0), a.Input(1), a.Input(2), a.cfg.Mask.tensor(), a.cfg.plain(), ofMask)
	grads := append(a.room.grads[:0], d.Query, d.Key, d.Value)
	if ofMask {
		grads = append(grads, d.Mask)
	}
	return grads, err
}

func (a *attention) give(s *slab) { s.attentions.give(a) }

func (c *Call) saveMask(cfg AttentionConfig) {
	if cfg.Mask != nil {
		c.Save(cfg.Mask.value)
	}
}

// groupedAttention has a dimension more: groups of heads beside the one of keys and values that they share.
func (t *Tape) groupedAttention(q, k, v *Variable, cfg AttentionConfig) *Variable {
	const op = "ScaledDotProductAttention"
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

// SelfAttention is the attention of sequences with themselves, in so many heads: qkv (rows, batch, 3n), or (batch, rows,
// 3n) if the batch is first, has queries, keys and values beside each other, as one dense layer computes them; nothing is
// copied to take them apart. The result is (…, n). A mask broadcasts to (batch, heads, rows, rows), and has no
// gradient here.
func (t *Tape) SelfAttention(qkv *Variable, heads int, batchFirst bool, cfg AttentionConfig) *Variable {
	if !t.begin("SelfAttention", cfg.mask(qkv)...) {
		return t.inert()
	}
	a := t.selfAttentions.take()
	a.cfg, a.heads, a.batchFirst = cfg, heads, batchFirst
	return t.apply("SelfAttention", a, &a.Call, cfg.mask(qkv), true)
}

// selfAttention is one use of SelfAttention.
type selfAttention struct {
	Call
	cfg        AttentionConfig
	heads      int
	batchFirst bool
}

func (a *selfAttention) forward() (*tensor.Tensor, error) {
	if err := a.cfg.check(); err != nil {
		return nil, err
	}
	if a.cfg.GQA {
		return nil, fmt.Errorf("%w: GQA: all heads have keys and values of their own here", ErrInvalid)
	}
	t := a.tape
	y, sums, err := t.rt.SelfAttention(t.ctx, a.Input(0), a.cfg.Mask.tensor(), a.heads, a.batchFirst, a.cfg.plain())
	if err == nil {
		a.Save(a.Input(0), y, sums)
		a.saveMask(a.cfg)
	}
	return y, err
}

func (a *selfAttention) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t, y, sums := a.tape, a.Saved()[1], a.Saved()[2]
	return a.Grads(t.rt.SelfAttentionGrad(t.ctx, g, y, sums, a.Input(0), a.cfg.Mask.tensor(), a.heads, a.batchFirst, a.cfg.plain()))
}

func (a *selfAttention) give(s *slab) { s.selfAttentions.give(a) }
