package autograd_test

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	referenceOps["attention_dropout"] = func(r *referenceRun) *autograd.Variable {
		r.tape.SetSeed(uint64(r.float("seed", 0)))
		return r.tape.ScaledDotProductAttention(r.in("query"), r.in("key"), r.in("value"), autograd.AttentionConfig{
			Causal: r.bool("is_causal", false), Mask: r.optional("attn_mask"), KeyPadding: r.flags("key_padding"), Dropout: r.float("p", 0)})
	}
	referenceOps["multihead_weights"] = multiheadReference
	for name, kind := range map[string]tensor.RecurrentKind{"rnn_tanh": tensor.RNNTanh, "rnn_relu": tensor.RNNReLU, "lstm": tensor.LSTM, "gru": tensor.GRU} {
		referenceOps["packed_"+name] = func(r *referenceRun) *autograd.Variable { return paddedReference(r, kind) }
	}
}

// paddedReference are the results of a layer, one after the other.
func paddedReference(r *referenceRun, kind tensor.RecurrentKind) *autograd.Variable {
	layer := recurrentOf(r, kind)
	x := r.in("input")
	steps := x.Shape()[0]
	if layer.BatchFirst {
		steps = x.Shape()[1]
	}
	lengths, err := nn.NewLengths(r.b.Ctx, r.b.RT, steps, r.ints("lengths")...)
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, lengths.Release()) }()
	y, hn, cn := (*nn.LSTM)(layer).RunPadded(r.tape, x, lengths, r.optional("h0"), r.optional("c0"))
	require.NoError(r.t, r.tape.Err())
	parts := []*autograd.Variable{r.tape.Reshape(y, -1), r.tape.Reshape(hn, -1)}
	if kind == tensor.LSTM {
		parts = append(parts, r.tape.Reshape(cn, -1))
	}
	return r.tape.Cat(0, parts...)
}

// flags is an input of whole numbers as uint8, or nil.
func (r *referenceRun) flags(name string) *autograd.Variable {
	a, ok := r.Inputs[name]
	if !ok {
		return nil
	}
	flags := make([]uint8, len(a.Values))
	for i, v := range a.Values {
		flags[i] = uint8(v)
	}
	return autograd.Upload(r.tape, flags, a.Shape...)
}

// multiheadReference is the result of a layer, and its weights. Attend returns the same result.
func multiheadReference(r *referenceRun) *autograd.Variable {
	m := nn.MultiHeadAttention{Heads: r.int("heads", 0), BatchFirst: r.bool("batch_first", false), InWeight: r.param("in_proj_weight"),
		QueryWeight: r.param("q_proj_weight"), KeyWeight: r.param("k_proj_weight"), ValueWeight: r.param("v_proj_weight"),
		InBias: r.param("in_proj_bias"), Out: &nn.Linear{Weight: r.param("out_proj_weight"), Bias: r.param("out_proj_bias")}}
	query := r.in("query")
	key, value := query, query
	if _, ok := r.Inputs["key"]; ok {
		key, value = r.in("key"), r.in("value")
	}
	cfg := autograd.AttentionConfig{Causal: r.bool("is_causal", false), Mask: r.optional("attn_mask"), KeyPadding: r.flags("key_padding")}
	y, w := m.AttendWeights(r.tape, query, key, value, cfg, r.bool("average", true))
	require.NoError(r.t, r.tape.Err())
	other := m.Attend(r.tape, query, key, value, cfg)
	require.NoError(r.t, r.tape.Err())
	want := r.output()
	r.same("Attend", other.Value(), want[:other.Value().Elements()])
	return r.tape.Cat(0, r.tape.Reshape(y, -1), r.tape.Reshape(w, -1))
}
