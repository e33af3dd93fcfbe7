package nn

import "github.com/cistern-ml/cistern/autograd"

// AttendWeights is Attend and returns the weights, too: those of all heads (batch, heads, queries,
// keys) or, if average is true, their mean over the heads (batch, queries, keys) (need_weights=True
// and average_attn_weights, PyTorch's default). The weights are those after dropout, and have a
// gradient. They are stored, unlike those of Attend. Without a batch the results have no such
// dimension.
func (m *MultiHeadAttention) AttendWeights(t *autograd.Tape, query, key, value *autograd.Variable, cfg autograd.AttentionConfig, average bool) (y, weights *autograd.Variable) {
	own, local, ok := m.begin(t, query, key, value)
	if !ok {
		return t.Fail(nil), t.Fail(nil)
	}
	defer t.Enter(own, local).Leave()
	flat := query.Rank() == 2
	weights = t.Frame(func() *autograd.Variable {
		q, k, cfg := query, key, m.completed(cfg)
		if flat {
			q, k, _, cfg = m.batched(t, query, key, value, cfg)
		}
		return t.AttentionWeights(m.projectOne(t, q, 0, m.QueryWeight), m.projectOne(t, k, 1, m.KeyWeight), cfg)
	})
	y = t.Frame(func() *autograd.Variable {
		v := value
		if flat {
			v = t.Unsqueeze(value, m.batch())
		}
		y := m.merge(t, t.MatMul(weights, m.projectOne(t, v, 2, m.ValueWeight)))
		if flat {
			y = t.Squeeze(y, m.batch())
		}
		return y
	})
	if !average && !flat {
		return y, weights
	}
	all := weights
	defer all.Release()
	weights = t.Frame(func() *autograd.Variable {
		w := all
		if average {
			w = t.Mean(w, 1)
		}
		if flat {
			w = t.Squeeze(w, 0)
		}
		return w
	})
	return y, weights
}
