package nn

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// MultiHeadAttention projects queries, keys and values, lets each head attend with its part of
// them, and projects what the heads found (torch.nn.MultiheadAttention, without dropout, extra keys
// or weights as a result). Sequences are (steps, batch, n), or (batch, steps, n) with BatchFirst,
// or (steps, n) without a batch.
type MultiHeadAttention struct {
	// InWeight (3n, n) projects queries, keys and values, if these are of one size; else they have
	// weights of their own, (n, n), (n, keys) and (n, values).
	InWeight                            *autograd.Parameter
	QueryWeight, KeyWeight, ValueWeight *autograd.Parameter
	InBias                              *autograd.Parameter // (3n), or nil
	Out                                 *Linear
	Heads                               int
	BatchFirst                          bool
	// Causal hides from each place those behind it, in Forward.
	Causal bool
}

// MultiHeadAttention makes an attention of n numbers in so many heads, which divide n (torch.nn.MultiheadAttention). It
// takes [BatchFirst], [NoBias], [KeyDim], [ValueDim] and [Causal]. As PyTorch does, projections are drawn after Xavier,
// biases are 0, and the last weights are those of a [Linear].
func (in *Initializer) MultiHeadAttention(n, heads int, options ...LayerOption) *MultiHeadAttention {
	call := fmt.Sprintf("MultiHeadAttention(%d, %d)", n, heads)
	o := in.options(call, options, "BatchFirst", "NoBias", "KeyDim", "ValueDim", "Causal")
	s := o.sequence
	if n < 1 || heads < 1 || n%heads != 0 || s.keys < 0 || s.values < 0 {
		in.fail(call, fmt.Errorf("%w: want at least one head, which divide the numbers", autograd.ErrInvalid))
	}
	m := &MultiHeadAttention{Heads: heads, BatchFirst: s.batchFirst, Causal: s.causal}
	xavier := func(rows, cols int) *autograd.Parameter {
		bound := math.Sqrt(6 / float64(rows+cols))
		return in.parameter(call, func() float64 { return (2*in.rand.Float64() - 1) * bound }, rows, cols)
	}
	if s.keys == 0 && s.values == 0 {
		m.InWeight = xavier(3*n, n)
	} else {
		size := func(of int) int {
			if of == 0 {
				return n
			}
			return of
		}
		m.QueryWeight, m.KeyWeight, m.ValueWeight = xavier(n, n), xavier(n, size(s.keys)), xavier(n, size(s.values))
	}
	if !o.noBias {
		m.InBias = in.Zeros(3 * n)
	}
	m.Out = &Linear{Weight: in.fanIn(call, n, n, n)}
	if !o.noBias {
		m.Out.Bias = in.Zeros(n)
	}
	return m
}

// Parameters are "in_proj_weight", or "q_proj_weight" and so on, "in_proj_bias", "out_proj.weight", "out_proj.bias".
func (m *MultiHeadAttention) Parameters() autograd.Parameters {
	if m == nil {
		return nil
	}
	var ps autograd.Parameters
	for _, p := range []autograd.Named{{Name: "in_proj_weight", Parameter: m.InWeight}, {Name: "q_proj_weight", Parameter: m.QueryWeight}, {Name: "k_proj_weight", Parameter: m.KeyWeight},
		{Name: "v_proj_weight", Parameter: m.ValueWeight}, {Name: "in_proj_bias", Parameter: m.InBias}} {
		if p.Parameter != nil {
			ps = append(ps, p)
		}
	}
	for _, p := range m.Out.Parameters() {
		ps = append(ps, autograd.Named{Name: "out_proj." + p.Name, Parameter: p.Parameter, Layer: "Linear"})
	}
	return ps
}

// Forward lets x attend to itself.
func (m *MultiHeadAttention) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return m.Attend(t, x, x, x, autograd.AttentionConfig{Causal: m != nil && m.Causal})
}

// Attend lets queries attend to keys, of which each has a value. A mask broadcasts to (batch,
// heads, queries, keys), and is as that of [autograd.Tape.ScaledDotProductAttention]: PyTorch's
// layer takes a mask of bools the other way round.
func (m *MultiHeadAttention) Attend(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
	const op = "MultiHeadAttention"
	switch {
	case m == nil || m.Heads < 1 || m.Out == nil || m.InWeight == nil && (m.QueryWeight == nil || m.KeyWeight == nil || m.ValueWeight == nil):
		t.Fail(fmt.Errorf("nn: %s: %w: the layer is nil, or lacks weights or heads", op, autograd.ErrInvalid))
	case !t.Begin(op, query, key, value):
	case query.Rank() != 2 && query.Rank() != 3 || key.Rank() != query.Rank() || value.Rank() != query.Rank():
		t.Fail(fmt.Errorf("nn: %s: %w: queries %v, keys %v, values %v: want sequences (steps, batch, n), or (steps, n)", op, tensor.ErrShape, query.Shape(), key.Shape(), value.Shape()))
	}
	if t.Err() != nil {
		return t.Fail(nil)
	}
	in, local := m.InWeight, "in_proj_weight"
	if in == nil {
		in, local = m.QueryWeight, "q_proj_weight"
	}
	return t.Layer(in, local, func() *autograd.Variable {
		if query.Rank() == 3 {
			return m.attend(t, query, key, value, cfg)
		}
		q := t.Unsqueeze(query, m.batch())
		k, v := q, q
		if key != query || value != query {
			k, v = t.Unsqueeze(key, m.batch()), t.Unsqueeze(value, m.batch())
		}
		y := m.attend(t, q, k, v, cfg)
		return t.Reshape(y, query.Shape()...)
	})
}

// batch is the dimension of the batch.
func (m *MultiHeadAttention) batch() int {
	if m.BatchFirst {
		return 0
	}
	return 1
}

// attend is inside of a frame.
func (m *MultiHeadAttention) attend(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
	bias := t.Param(m.InBias)
	if query == key && key == value && m.InWeight != nil && !(cfg.Mask != nil && cfg.Mask.RequiresGrad()) {
		qkv := t.Linear(query, t.Param(m.InWeight), bias)
		y := t.SelfAttention(qkv, m.Heads, m.BatchFirst, cfg)
		qkv.Release()
		return m.join(t, y)
	}
	out := t.Param(m.Out.Weight).Shape()
	if t.Err() != nil || len(out) != 2 || out[0]%m.Heads != 0 {
		return t.Fail(fmt.Errorf("nn: MultiHeadAttention: %w: weights %v for %d heads", tensor.ErrShape, out, m.Heads))
	}
	n := out[0]
	project := func(x *autograd.Variable, i int, weight *autograd.Parameter) *autograd.Variable {
		var w, b *autograd.Variable
		if weight != nil {
			w = t.Param(weight)
		} else {
			w = t.Narrow(t.Param(m.InWeight), 0, i*n, n)
		}
		if bias != nil {
			b = t.Narrow(bias, 0, i*n, n)
		}
		y := t.Linear(x, w, b)
		shape := y.Shape()
		if len(shape) != 3 { // there is an error
			return y
		}
		y = t.Reshape(y, shape[0], shape[1], m.Heads, n/m.Heads)
		if m.BatchFirst {
			return t.Permute(y, 0, 2, 1, 3)
		}
		return t.Permute(y, 1, 2, 0, 3)
	}
	q, k, v := project(query, 0, m.QueryWeight), project(key, 1, m.KeyWeight), project(value, 2, m.ValueWeight)
	y := t.ScaledDotProductAttention(q, k, v, cfg) // (batch, heads, steps, n/heads)
	if m.BatchFirst {
		y = t.Permute(y, 0, 2, 1, 3)
	} else {
		y = t.Permute(y, 2, 0, 1, 3)
	}
	shape := query.Shape()
	return m.join(t, t.Reshape(y, shape[0], shape[1], n))
}

// join projects what the heads found.
func (m *MultiHeadAttention) join(t *autograd.Tape, y *autograd.Variable) *autograd.Variable {
	return t.Module("out_proj", func() *autograd.Variable { return m.Out.Forward(t, y) })
}
