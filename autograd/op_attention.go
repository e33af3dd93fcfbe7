package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// AttentionConfig configures an attention. Its zero value is PyTorch's default.
type AttentionConfig struct {
	// Causal hides from query i the keys after key i (is_causal). With Keys the last query sees all
	// Keys, and each query before it one key less.
	Causal bool
	// Mask broadcasts to (…, L, S) (attn_mask). A mask of the operands' dtype is added to the
	// scores and may have a gradient. With a uint8 mask, queries see the keys where it is not 0.
	// Nil: all keys are seen. Mask and Causal exclude each other.
	Mask *Variable
	// KeyPadding, uint8 (batch, S), hides from all queries of a row the keys where it is not 0
	// (key_padding_mask of torch.nn.MultiheadAttention; the opposite of Mask). The batch is the
	// queries' first dimension; queries (L, E) have padding (S). Alone or with Causal it takes one
	// number for each key in memory; with Mask both become one mask of their common shape.
	KeyPadding *Variable
	// Scale is the factor of the products of queries and keys; 0: 1/√E.
	Scale float64
	// Dropout is the share of the weights that is dropped on a tape that trains (dropout_p). Then
	// the weights are stored. The backward pass holds them before and after dropout, 2 L S numbers
	// for each head of a row, which an attention without dropout never stores.
	Dropout float64
	// Keys, if it is not 0, is the number of keys and values in use. Those after them are capacity,
	// as in an nn.KVCache, and are not read. The operands can't have gradients then.
	Keys int
	// GQA lets several heads of queries, dimension -3, share one head of keys and values
	// (enable_gqa).
	GQA bool
}

// check returns an error for options that exclude each other or are out of range.
func (cfg AttentionConfig) check() error {
	switch {
	case cfg.Causal && cfg.Mask != nil:
		return fmt.Errorf("%w: a mask and Causal: want one of them", ErrInvalid)
	case cfg.Keys < 0:
		return fmt.Errorf("%w: %d keys", tensor.ErrShape, cfg.Keys)
	case !(cfg.Dropout >= 0 && cfg.Dropout <= 1):
		return fmt.Errorf("%w: the dropout is %v: want 0 to 1", ErrInvalid, cfg.Dropout)
	}
	return nil
}

func (cfg AttentionConfig) plain() tensor.AttentionConfig {
	return tensor.AttentionConfig{Causal: cfg.Causal, Scale: cfg.Scale, Keys: cfg.Keys}
}

// mask appends the mask to the inputs, if there is one.
func (cfg AttentionConfig) mask(inputs ...*Variable) []*Variable {
	if cfg.Mask != nil {
		inputs = append(inputs, cfg.Mask)
	}
	return inputs
}

// drops reports whether weights are dropped on t.
func (cfg AttentionConfig) drops(t *Tape) bool { return cfg.Dropout > 0 && t.Training() }

// direct reports whether the runtime's attention needs neither stored weights nor another mask.
func (cfg AttentionConfig) direct(t *Tape) bool {
	return !cfg.drops(t) && cfg.KeyPadding == nil && cfg.check() == nil
}

// begin starts an attention of these operands, and reports whether it can go on.
func (cfg AttentionConfig) begin(t *Tape, op string, operands ...*Variable) bool {
	if !t.begin(op, withOptional(operands, cfg.Mask, cfg.KeyPadding)...) {
		return false
	}
	t.fail(op, cfg.check())
	return t.Err() == nil
}

// ScaledDotProductAttention returns softmax(q kᵀ scale + mask) v for queries (…, L, E), keys (…, S,
// E) and values (…, S, V), without storing the scores unless weights are dropped; see
// [tensor.Layers.ScaledDotProductAttention]. A query that sees no key gets 0.
func (t *Tape) ScaledDotProductAttention(q, k, v *Variable, cfg AttentionConfig) *Variable {
	if !cfg.GQA && cfg.Keys == 0 && cfg.direct(t) {
		return opAttention.Apply(t, attention{cfg.plain()}, cfg.mask(q, k, v)...)
	}
	return t.composedAttention(q, k, v, cfg)
}

// composedAttention computes an attention by more than one operation.
func (t *Tape) composedAttention(q, k, v *Variable, cfg AttentionConfig) *Variable {
	const op = "ScaledDotProductAttention"
	if !cfg.begin(t, op, q, k, v) {
		return t.inert()
	}
	return t.Frame(func() *Variable {
		cfg, shape := t.oneMask(op, q, cfg), q.Shape()
		if cfg.GQA {
			q, k, v, cfg = t.grouped(op, q, k, v, cfg)
		}
		if t.Err() != nil {
			return t.inert()
		}
		var y *Variable
		if cfg.drops(t) {
			y = t.MatMul(t.weigh(q, k, cfg).Once(), t.firstKeys(v, cfg))
		} else {
			y = opAttention.Apply(t, attention{cfg.plain()}, cfg.mask(q, k, v)...)
		}
		if !cfg.GQA || t.Err() != nil {
			return y
		}
		return t.Reshape(y, append(shape[:len(shape)-1], v.Shape()[v.Rank()-1])...)
	})
}

// attention is one use of ScaledDotProductAttention, of queries, keys, values and, if there is one,
// a mask.
type attention struct{ cfg tensor.AttentionConfig }

var opAttention = newOp[attention]("ScaledDotProductAttention")

// Forward attends, without storing the scores.
func (a *attention) Forward(c *Call) (*tensor.Tensor, error) {
	if a.cfg.Keys > 0 && c.NeedsGrads() {
		return nil, fmt.Errorf("%w: %d keys of a cache: want operands without gradients", ErrInvalid, a.cfg.Keys)
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

// grouped adds a dimension to the operands: groups of query heads, each beside the head of keys and
// values that it shares.
func (t *Tape) grouped(op string, q, k, v *Variable, cfg AttentionConfig) (*Variable, *Variable, *Variable, AttentionConfig) {
	qs, ks, vs := q.Shape(), k.Shape(), v.Shape()
	n := len(qs)
	if n < 3 || len(ks) != n || len(vs) != n || ks[n-3] != vs[n-3] || ks[n-3] == 0 || qs[n-3]%ks[n-3] != 0 {
		t.fail(op, fmt.Errorf("%w: queries %v, keys %v, values %v: want heads in dimension -3, where those of queries are a multiple of the others", tensor.ErrShape, qs, ks, vs))
		return q, k, v, cfg
	}
	heads := ks[n-3]
	if cfg.Mask != nil && cfg.Mask.Rank() > 2 {
		cfg.Mask = t.splitHeads(cfg.Mask, heads)
	}
	return t.splitHeads(q, heads), t.Unsqueeze(k, n-2), t.Unsqueeze(v, n-2), cfg
}

// splitHeads splits dimension -3 into heads and the rest; a dimension of 1 becomes two of 1.
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

// SelfAttention returns the attention of sequences with themselves, in the given number of heads.
// qkv (rows, batch, 3n), or (batch, rows, 3n) if batchFirst is true, has queries, keys and values
// beside each other, as one dense layer computes them. They are copied apart only if weights are
// dropped. The result is (…, n). A mask broadcasts to (batch, heads, rows, rows), and has no
// gradient here.
func (t *Tape) SelfAttention(qkv *Variable, heads int, batchFirst bool, cfg AttentionConfig) *Variable {
	if !cfg.GQA && cfg.Keys == 0 && cfg.direct(t) {
		return opSelfAttention.Apply(t, selfAttention{heads, batchFirst, cfg.plain()}, cfg.mask(qkv)...)
	}
	return t.composedSelf(qkv, selfAttention{heads, batchFirst, cfg.plain()}, cfg)
}

// composedSelf computes a SelfAttention by more than one operation.
func (t *Tape) composedSelf(qkv *Variable, self selfAttention, cfg AttentionConfig) *Variable {
	const op = "SelfAttention"
	if !cfg.begin(t, op, qkv) {
		return t.inert()
	}
	if cfg.GQA || cfg.Keys != 0 {
		t.fail(op, fmt.Errorf("%w: GQA %v, %d keys: all heads have keys and values of their own here", ErrInvalid, cfg.GQA, cfg.Keys))
		return t.inert()
	}
	return t.Frame(func() *Variable {
		if cfg.drops(t) {
			return t.attendApart(op, qkv, self, cfg)
		}
		cfg := t.oneMask(op, t.Unsqueeze(qkv, 0), cfg)
		return opSelfAttention.Apply(t, self, cfg.mask(qkv)...)
	})
}

// attendApart is SelfAttention on copies of the queries, keys and values.
func (t *Tape) attendApart(op string, qkv *Variable, a selfAttention, cfg AttentionConfig) *Variable {
	shape := qkv.Shape()
	if len(shape) != 3 || a.heads < 1 || shape[2]%(3*a.heads) != 0 {
		t.fail(op, fmt.Errorf("%w: %v in %d heads: want a last dimension of 3 times a multiple of the heads", tensor.ErrShape, shape, a.heads))
		return t.inert()
	}
	head := shape[2] / 3 / a.heads
	to, back := []int{2, 1, 3, 0, 4}, []int{2, 0, 1, 3}
	if a.batchFirst {
		to, back = []int{2, 0, 3, 1, 4}, []int{0, 2, 1, 3}
	}
	parts := t.Split(t.Permute(t.Reshape(qkv, shape[0], shape[1], 3, a.heads, head), to...).Once(), 0, 1, 1, 1)
	for i, p := range parts {
		parts[i] = t.Squeeze(p, 0)
	}
	y := t.ScaledDotProductAttention(parts[0], parts[1], parts[2], cfg)
	return t.Reshape(t.Permute(y, back...), shape[0], shape[1], shape[2]/3)
}

// selfAttention is one use of SelfAttention, of qkv and, if there is one, a mask.
type selfAttention struct {
	heads      int
	batchFirst bool
	cfg        tensor.AttentionConfig
}

var opSelfAttention = newOp[selfAttention]("SelfAttention")

// Forward attends, without storing the scores.
func (a *selfAttention) Forward(c *Call) (*tensor.Tensor, error) {
	x, mask := c.Input(0), c.Input(1)
	y, sums, err := c.Runtime().SelfAttention(c.Context(), x, mask, a.heads, a.batchFirst, a.cfg)
	if mask != nil {
		return c.saving(y, err, x, y, sums, mask)
	}
	return c.saving(y, err, x, y, sums)
}

// Backward computes the scores again.
func (a *selfAttention) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().SelfAttentionGrad(c.Context(), g, c.Result(), c.Saved()[2], c.Input(0), c.Input(1), a.heads, a.batchFirst, a.cfg)
	c.doneOwn()
	return c.GiveReplacing(0, g, d, err)
}
