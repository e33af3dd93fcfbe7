package nn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// KVCache keeps the keys and values of the tokens that a model has seen, for each of its
// attentions, so that each token of a generated text is computed once. NewKVCache allocates all of
// its memory, with category activation and module "KVCache"; tokens are appended in place. One
// goroutine uses it at a time. It belongs to the caller, until Release.
type KVCache struct {
	cfg          KVCacheConfig
	rt           *tensor.Runtime
	keys, values []*tensor.Tensor // of each layer, (batch, heads, length, head size)
	tokens       []int            // of each layer
}

// KVCacheConfig is the size of a KVCache, which takes 2 Layers Batch Heads Length HeadSize
// elements.
type KVCacheConfig struct {
	Layers   int          // number of attentions
	Batch    int          // number of rows
	Heads    int          // of keys and values, see AttentionConfig.GQA
	Length   int          // most tokens of a row
	HeadSize int          // numbers of a key, and of a value
	Dtype    tensor.Dtype // 0: Float32
}

// NewKVCache allocates an empty cache.
func NewKVCache(ctx context.Context, rt *tensor.Runtime, cfg KVCacheConfig) (*KVCache, error) {
	if rt == nil || min(cfg.Layers, cfg.Batch, cfg.Heads, cfg.Length, cfg.HeadSize) < 1 {
		return nil, fmt.Errorf("nn: NewKVCache: %w: runtime %v, %+v: want a runtime and sizes of at least 1", autograd.ErrInvalid, rt, cfg)
	}
	if cfg.Dtype == 0 {
		cfg.Dtype = tensor.Float32
	}
	c := &KVCache{cfg: cfg, rt: rt}
	ctx = memcache.WithLabel(tensor.Detached(ctx), memcache.Label{Module: "KVCache", Category: memcache.CategoryActivation})
	for range cfg.Layers {
		c.tokens = append(c.tokens, 0)
		for _, to := range []*[]*tensor.Tensor{&c.keys, &c.values} {
			x, err := rt.New(ctx, cfg.Dtype, cfg.Batch, cfg.Heads, cfg.Length, cfg.HeadSize)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("nn: NewKVCache: %w", err), c.Release())
			}
			*to = append(*to, x)
		}
	}
	return c, nil
}

// Len returns the number of tokens of a row.
func (c *KVCache) Len() int {
	if c == nil || len(c.tokens) == 0 {
		return 0
	}
	return slices.Min(c.tokens)
}

// Reset removes all tokens and keeps the memory.
func (c *KVCache) Reset() {
	if c != nil {
		clear(c.tokens)
	}
}

// Release frees the memory, after the work that is queued. A second call does nothing.
func (c *KVCache) Release() (err error) {
	if c == nil {
		return nil
	}
	for _, x := range slices.Concat(c.keys, c.values) {
		err = errors.Join(err, x.Release())
	}
	c.keys, c.values = nil, nil
	return err
}

// Attend appends keys and values (batch, heads, n, head size) of n new tokens to those of a layer,
// and lets their queries (batch, query heads, n, head size) attend to all tokens up to their own.
// Each layer attends once in a step, from layer 0 on. The tape must be one of [autograd.NoGrad].
// cfg may set Scale, GQA and KeyPadding, (batch, all tokens). An error does not change the layer's
// number of tokens. If layers then have different numbers, call Reset.
func (c *KVCache) Attend(t *autograd.Tape, layer int, q, k, v *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
	if !t.Begin("KVCache", q, k, v) {
		return t.Fail(nil)
	}
	n, err := c.check(t, layer, q, k, v, cfg)
	if err != nil {
		return t.Fail(fmt.Errorf("nn: KVCache: %w", err))
	}
	keys, values, at := c.keys[layer], c.values[layer], c.tokens[layer]
	err = c.rt.CopyInto(t.Context(), keys, 2, at, k.Tensor())
	if err == nil {
		err = c.rt.CopyInto(t.Context(), values, 2, at, v.Tensor())
	}
	if err != nil {
		return t.Fail(fmt.Errorf("nn: KVCache: %w", err))
	}
	cfg.Causal, cfg.Keys = true, at+n
	y := t.Frame(func() *autograd.Variable {
		return t.ScaledDotProductAttention(q, t.Input(keys), t.Input(values), cfg)
	})
	if t.Err() == nil {
		c.tokens[layer] = at + n
	}
	return y
}

// check returns the number of new tokens.
func (c *KVCache) check(t *autograd.Tape, layer int, q, k, v *autograd.Variable, cfg autograd.AttentionConfig) (n int, err error) {
	switch {
	case c == nil || len(c.keys) == 0 || c.rt != t.Runtime():
		return 0, fmt.Errorf("%w: it is nil, released, or of another runtime than the tape", autograd.ErrInvalid)
	case t.Recording():
		return 0, fmt.Errorf("%w: the tape records a backward pass: want one of NoGrad", autograd.ErrInvalid)
	case t.Runtime().Capturing() != nil:
		return 0, t.Runtime().Capturing().Refuse("KVCache", "each step has one more token")
	case cfg.Mask != nil || cfg.Keys != 0:
		return 0, fmt.Errorf("%w: a mask, or %d keys: tokens are causal, and may have a KeyPadding", autograd.ErrInvalid, cfg.Keys)
	case layer < 0 || layer >= c.cfg.Layers:
		return 0, fmt.Errorf("%w: layer %d of %d", autograd.ErrInvalid, layer, c.cfg.Layers)
	}
	want := tensor.Shape{c.cfg.Batch, c.cfg.Heads, 0, c.cfg.HeadSize}
	got := k.Shape()
	if len(got) == 4 {
		n, want[2] = got[2], got[2]
	}
	at := c.tokens[layer]
	switch {
	case !slices.Equal(got, want) || !slices.Equal(v.Shape(), want):
		return 0, fmt.Errorf("%w: keys %v, values %v: want (%d, %d, tokens, %d)", tensor.ErrShape, got, v.Shape(), want[0], want[1], want[3])
	case q.Rank() != 4 || q.Shape()[2] != n:
		return 0, fmt.Errorf("%w: queries %v for keys %v: want one for each new token", tensor.ErrShape, q.Shape(), got)
	case n > c.cfg.Length-at:
		return 0, fmt.Errorf("%w: it is full: %d of %d tokens, and %d more: call Reset, or make a longer one", autograd.ErrInvalid, at, c.cfg.Length, n)
	case at != c.Len() || layer > 0 && c.tokens[layer-1] != at+n:
		return 0, fmt.Errorf("%w: layer %d has %d tokens and gets %d, and all have %v: want each layer once in a step, in order; Reset after a step that has failed", autograd.ErrInvalid, layer, at, n, c.tokens)
	}
	return n, nil
}

// ForwardCached is Forward of new tokens only, which attend to those of earlier calls, too; see
// [KVCache.Attend]. layer is the index of the layer among the attentions of the model. x has the
// new tokens, (n, batch, size), or (batch, n, size) with BatchFirst.
func (m *MultiHeadAttention) ForwardCached(t *autograd.Tape, x *autograd.Variable, cache *KVCache, layer int, cfg autograd.AttentionConfig) *autograd.Variable {
	own, local, ok := m.begin(t, x, x, x)
	switch {
	case !ok:
		return t.Fail(nil)
	case x.Rank() != 3:
		return t.Fail(fmt.Errorf("nn: MultiHeadAttention: %w: %v: want new tokens with a batch", tensor.ErrShape, x.Shape()))
	}
	return t.Layer(own, local, func() *autograd.Variable {
		q, k, v := m.project(t, x, x, x)
		return m.merge(t, cache.Attend(t, layer, q, k, v, cfg))
	})
}
