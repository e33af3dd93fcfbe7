package autograd

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// oneMask returns cfg with KeyPadding merged into Mask, and with Causal merged if there are fewer
// queries than Keys. Otherwise Causal stays, because kernels need no mask for it.
func (t *Tape) oneMask(op string, q *Variable, cfg AttentionConfig) AttentionConfig {
	if rows := q.Rank() - 2; cfg.Keys > 0 && cfg.Causal && rows >= 0 {
		if n := q.Shape()[rows]; n < cfg.Keys {
			cfg.Causal = false
			if n > 1 {
				cfg.Mask = t.causalMask(n, cfg.Keys, cfg.Keys-n, q.value.Dtype())
			}
		}
	}
	if cfg.KeyPadding == nil {
		return cfg
	}
	shape := cfg.KeyPadding.Shape()
	if !(len(shape) == 2 && q.Rank() > 2 || len(shape) == 1 && q.Rank() == 2) || cfg.KeyPadding.value.Dtype() != tensor.Uint8 {
		t.fail(op, fmt.Errorf("%w: the key padding is %v %v for queries %v: want uint8 (batch, keys), or (keys) without a batch",
			tensor.ErrShape, cfg.KeyPadding.value.Dtype(), shape, q.Shape()))
		return cfg
	}
	if len(shape) == 2 { // (batch, 1, …, 1, keys)
		shape = slices.Insert(shape, 1, slices.Repeat([]int{1}, q.Rank()-2)...)
	}
	none := t.full(math.Inf(-1), q.value.Dtype())
	padding := t.Where(t.Reshape(cfg.KeyPadding, shape...), none, t.full(0, q.value.Dtype()))
	switch {
	case cfg.Mask == nil:
		cfg.Mask = padding
	case cfg.Mask.value.Dtype() == tensor.Uint8:
		cfg.Mask = t.Where(cfg.Mask, padding, none)
	default:
		cfg.Mask = t.Add(cfg.Mask, padding)
	}
	cfg.KeyPadding = nil
	return cfg
}

// full returns a constant of equal elements; without a shape it is a scalar.
func (t *Tape) full(value float64, dtype tensor.Dtype, shape ...int) *Variable {
	x, err := t.rt.Full(t.ctx, value, dtype, shape...)
	if err != nil {
		t.fail("Full", err)
		return t.inert()
	}
	defer t.free(x)
	return t.share("Full", x)
}

// causalMask returns a mask that is -Inf for query i at the keys after key i + offset, and 0
// elsewhere.
func (t *Tape) causalMask(queries, keys, offset int, dtype tensor.Dtype) *Variable {
	return t.Triu(t.full(math.Inf(-1), dtype, queries, keys).Once(), offset+1)
}
