package autograd_test

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	referenceOps["bmm"] = func(r *referenceRun) *autograd.Variable { return r.tape.BMM(r.in("input"), r.in("mat2")) }
	referenceOps["matmul"] = func(r *referenceRun) *autograd.Variable { return r.tape.MatMul(r.in("input"), r.in("other")) }
	referenceOps["transpose"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Transpose(r.in("input"), r.int("dim0", 0), r.int("dim1", 0))
	}
	referenceOps["index_select"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.IndexSelect(r.in("input"), r.int("dim", 0), r.in("index"))
	}
	referenceOps["gather"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Gather(r.in("input"), r.int("dim", 0), r.in("index"))
	}
	referenceOps["embedding"] = func(r *referenceRun) *autograd.Variable {
		return r.tape.Embedding(r.in("input"), r.in("weight"),
			tensor.EmbeddingConfig{PaddingIndex: r.ints("padding_idx"), ScaleGradByFreq: r.bool("scale_grad_by_freq", false)})
	}
	referenceOps["scaled_dot_product_attention"] = func(r *referenceRun) *autograd.Variable {
		mask := r.optional("attn_mask")
		if mask != nil && r.Inputs["attn_mask"].Int { // a mask of bools
			flags := make([]uint8, len(r.Inputs["attn_mask"].Values))
			for i, v := range r.Inputs["attn_mask"].Values {
				flags[i] = uint8(v)
			}
			mask = autograd.Upload(r.tape, flags, r.Inputs["attn_mask"].Shape...)
		}
		return r.tape.ScaledDotProductAttention(r.in("query"), r.in("key"), r.in("value"), autograd.AttentionConfig{
			Causal: r.bool("is_causal", false), Mask: mask, Scale: r.float("scale", 0), GQA: r.bool("enable_gqa", false)})
	}
	for _, kind := range []string{"rnn", "lstm", "gru"} {
		referenceOps[kind] = recurrentReference
	}
}

// recurrentReference makes the layer that the names of its weights describe.
func recurrentReference(r *referenceRun) *autograd.Variable {
	kind := map[string]tensor.RecurrentKind{"rnn": tensor.RNNTanh, "lstm": tensor.LSTM, "gru": tensor.GRU}[r.Op]
	if r.string("nonlinearity", "tanh") == "relu" {
		kind = tensor.RNNReLU
	}
	y, hn, cn := (*nn.LSTM)(recurrentOf(r, kind)).Run(r.tape, r.in("input"), r.optional("h0"), r.optional("c0"))
	require.NoError(r.t, r.tape.Err())
	for i, want := range r.Last {
		r.same(fmt.Sprint("last state ", i), []*autograd.Variable{hn, cn}[i].Value(), want)
	}
	return y
}

// recurrentOf is the layer of the case's weights.
func recurrentOf(r *referenceRun, kind tensor.RecurrentKind) *nn.Recurrent {
	layer := nn.Recurrent{Kind: kind, BatchFirst: r.bool("batch_first", false)}
	_, layer.Bidirectional = r.Inputs["weight_ih_l0_reverse"]
	for i := 0; ; i++ {
		suffix := fmt.Sprintf("_l%d", i/tapetest.DirectionsOf(&layer)) + []string{"", "_reverse"}[i%tapetest.DirectionsOf(&layer)]
		if _, ok := r.Inputs["weight_ih"+suffix]; !ok {
			break
		}
		layer.Cells = append(layer.Cells, nn.RecurrentCell{WeightIH: r.param("weight_ih" + suffix), WeightHH: r.param("weight_hh" + suffix),
			BiasIH: r.param("bias_ih" + suffix), BiasHH: r.param("bias_hh" + suffix)})
	}
	return &layer
}

// param is an input as a parameter, or nil.
func (r *referenceRun) param(name string) *autograd.Parameter {
	a, ok := r.Inputs[name]
	if !ok {
		return nil
	}
	p, err := autograd.NewParameter(r.upload(a.Values, a.Shape...))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, p.Release()) })
	r.leaves[name] = r.tape.Param(p)
	return p
}
