package nn

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// MultiHeadAttention projects queries, keys and values, computes the attention of each head on its
// part of them, and projects the joined results (torch.nn.MultiheadAttention, without extra keys).
// Sequences are (steps, batch, n), or (batch, steps, n) with BatchFirst, or (steps, n) without a
// batch.
type MultiHeadAttention struct {
	// InWeight (3n, n) projects queries, keys and values, if these have the same size. Otherwise
	// they have separate weights, (n, n), (n, keys) and (n, values).
	InWeight                            *autograd.Parameter
	QueryWeight, KeyWeight, ValueWeight *autograd.Parameter
	InBias                              *autograd.Parameter // (3n), or nil
	Out                                 *Linear
	Heads                               int
	BatchFirst                          bool
	// Causal hides later positions from each position, in Forward.
	Causal bool
	// Dropout is the share of the weights that is dropped in training, unless the call sets its
	// own; see [autograd.AttentionConfig] for its cost.
	Dropout float64
}

// MultiHeadAttention makes an attention of n numbers in the given number of heads, which must
// divide n (torch.nn.MultiheadAttention). It takes [BatchFirst], [NoBias], [KeyDim], [ValueDim],
// [Causal] and [AttentionDropout]. As PyTorch does, projections are drawn after Xavier, biases are
// 0, and the last weights are those of a [Linear].
func (in *Initializer) MultiHeadAttention(n, heads int, options ...LayerOption) *MultiHeadAttention {
	call := fmt.Sprintf("MultiHeadAttention(%d, %d)", n, heads)
	o := in.options(call, options, "BatchFirst", "NoBias", "KeyDim", "ValueDim", "Causal", "AttentionDropout")
	s := o.sequence
	if n < 1 || heads < 1 || n%heads != 0 || s.keys < 0 || s.values < 0 || !(s.dropout >= 0 && s.dropout <= 1) {
		in.fail(call, fmt.Errorf("%w: dropout %v: want heads that divide the numbers, and a dropout of 0 to 1", autograd.ErrInvalid, s.dropout))
	}
	m := &MultiHeadAttention{Heads: heads, BatchFirst: s.batchFirst, Causal: s.causal, Dropout: s.dropout}
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

// Parameters are "in_proj_weight", or "q_proj_weight" and so on, "in_proj_bias", "out_proj.weight",
// "out_proj.bias".
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

// Attend lets queries attend to keys, each of which has a value. A mask broadcasts to (batch,
// heads, queries, keys), and means the same as in [autograd.Tape.ScaledDotProductAttention];
// PyTorch's layer takes the opposite mask of bools. Key padding means the same as in PyTorch.
func (m *MultiHeadAttention) Attend(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
	own, local, ok := m.begin(t, query, key, value)
	if !ok {
		return t.Fail(nil)
	}
	return t.Layer(own, local, func() *autograd.Variable {
		if query.Rank() == 3 {
			return m.attend(t, query, key, value, m.completed(cfg))
		}
		q, k, v, cfg := m.batched(t, query, key, value, m.completed(cfg))
		return t.Reshape(m.attend(t, q, k, v, cfg), query.Shape()...)
	})
}

// begin starts a call, and reports whether it can go on. own is a parameter of the layer, and local
// its name there.
func (m *MultiHeadAttention) begin(t *autograd.Tape, query, key, value *autograd.Variable) (own *autograd.Parameter, local string, ok bool) {
	const op = "MultiHeadAttention"
	switch {
	case m == nil || m.Heads < 1 || m.Out == nil || m.InWeight == nil && (m.QueryWeight == nil || m.KeyWeight == nil || m.ValueWeight == nil):
		t.Fail(fmt.Errorf("nn: %s: %w: the layer is nil, or lacks weights or heads", op, autograd.ErrInvalid))
	case !t.Begin(op, query, key, value):
	case query.Rank() != 2 && query.Rank() != 3 || key.Rank() != query.Rank() || value.Rank() != query.Rank():
		t.Fail(fmt.Errorf("nn: %s: %w: queries %v, keys %v, values %v: want sequences (steps, batch, n), or (steps, n)", op, tensor.ErrShape, query.Shape(), key.Shape(), value.Shape()))
	}
	switch {
	case t.Err() != nil:
		return nil, "", false
	case m.InWeight == nil:
		return m.QueryWeight, "q_proj_weight", true
	}
	return m.InWeight, "in_proj_weight", true
}

// completed returns cfg with the layer's dropout, unless cfg has its own.
func (m *MultiHeadAttention) completed(cfg autograd.AttentionConfig) autograd.AttentionConfig {
	if cfg.Dropout == 0 {
		cfg.Dropout = m.Dropout
	}
	return cfg
}

// batched adds a batch of 1 to sequences without a batch.
func (m *MultiHeadAttention) batched(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig) (q, k, v *autograd.Variable, _ autograd.AttentionConfig) {
	q = t.Unsqueeze(query, m.batch())
	k, v = q, q
	if key != query || value != query {
		k, v = t.Unsqueeze(key, m.batch()), t.Unsqueeze(value, m.batch())
	}
	if p := cfg.KeyPadding; p != nil && p.Rank() == 1 {
		cfg.KeyPadding = t.Unsqueeze(p, 0)
	}
	return q, k, v, cfg
}

// batch returns the dimension of the batch.
func (m *MultiHeadAttention) batch() int {
	if m.BatchFirst {
		return 0
	}
	return 1
}

// attend computes the attention of sequences with a batch. It runs in a frame.
func (m *MultiHeadAttention) attend(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
	if query == key && key == value && m.InWeight != nil && !(cfg.Mask != nil && cfg.Mask.RequiresGrad()) {
		qkv := t.Linear(query, t.Param(m.InWeight), t.Param(m.InBias))
		y := t.SelfAttention(qkv, m.Heads, m.BatchFirst, cfg)
		qkv.Release()
		return m.join(t, y)
	}
	q, k, v := m.project(t, query, key, value)
	return m.merge(t, t.ScaledDotProductAttention(q, k, v, cfg))
}

// project returns the queries, keys and values of all heads, (batch, heads, steps, n/heads). For
// one sequence it computes them as one product.
func (m *MultiHeadAttention) project(t *autograd.Tape, query, key, value *autograd.Variable) (q, k, v *autograd.Variable) {
	if query != key || key != value || m.InWeight == nil {
		return m.projectOne(t, query, 0, m.QueryWeight), m.projectOne(t, key, 1, m.KeyWeight), m.projectOne(t, value, 2, m.ValueWeight)
	}
	parts := t.Split(m.apart(t, t.Linear(query, t.Param(m.InWeight), t.Param(m.InBias)), 3), 0, 1, 1, 1)
	for i, p := range parts {
		parts[i] = t.Squeeze(p, 0)
	}
	return parts[0], parts[1], parts[2]
}

// projectOne returns the queries (0), keys (1) or values (2) of all heads. If weight is nil, it
// copies their rows of InWeight.
func (m *MultiHeadAttention) projectOne(t *autograd.Tape, x *autograd.Variable, i int, weight *autograd.Parameter) *autograd.Variable {
	out := t.Param(m.Out.Weight).Shape()
	if t.Err() != nil || len(out) != 2 || out[0]%m.Heads != 0 {
		return t.Fail(fmt.Errorf("nn: MultiHeadAttention: %w: weights %v for %d heads", tensor.ErrShape, out, m.Heads))
	}
	n := out[0]
	w, bias := t.Param(weight), t.Param(m.InBias)
	if w == nil {
		w = t.Narrow(t.Param(m.InWeight), 0, i*n, n)
	}
	if bias != nil {
		bias = t.Narrow(bias, 0, i*n, n)
	}
	return t.Squeeze(m.apart(t, t.Linear(x, w, bias), 1), 0)
}

// apart permutes sequences of several parts, each with the numbers of all heads beside each other,
// to (parts, batch, heads, steps, n/heads).
func (m *MultiHeadAttention) apart(t *autograd.Tape, x *autograd.Variable, parts int) *autograd.Variable {
	shape := x.Shape()
	if len(shape) != 3 { // there is an error
		return x
	}
	x = t.Reshape(x, shape[0], shape[1], parts, m.Heads, shape[2]/parts/m.Heads)
	if m.BatchFirst {
		return t.Permute(x, 2, 0, 3, 1, 4)
	}
	return t.Permute(x, 2, 1, 3, 0, 4)
}

// merge joins the results of the heads, (batch, heads, steps, n/heads), and projects them.
func (m *MultiHeadAttention) merge(t *autograd.Tape, y *autograd.Variable) *autograd.Variable {
	if m.BatchFirst {
		y = t.Permute(y, 0, 2, 1, 3)
	} else {
		y = t.Permute(y, 2, 0, 1, 3)
	}
	if shape := y.Shape(); len(shape) == 4 {
		y = t.Reshape(y, shape[0], shape[1], shape[2]*shape[3])
	}
	return m.join(t, y)
}

// join projects the joined results of the heads.
func (m *MultiHeadAttention) join(t *autograd.Tape, y *autograd.Variable) *autograd.Variable {
	return t.Module("out_proj", func() *autograd.Variable { return m.Out.Forward(t, y) })
}
