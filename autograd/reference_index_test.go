package autograd

import "github.com/cistern-ml/cistern/tensor"

func init() {
	referenceOps["bmm"] = func(r *referenceRun) *Variable { return r.tape.BMM(r.in("input"), r.in("mat2")) }
	referenceOps["matmul"] = func(r *referenceRun) *Variable { return r.tape.MatMul(r.in("input"), r.in("other")) }
	referenceOps["transpose"] = func(r *referenceRun) *Variable {
		return r.tape.Transpose(r.in("input"), r.int("dim0", 0), r.int("dim1", 0))
	}
	referenceOps["index_select"] = func(r *referenceRun) *Variable {
		return r.tape.IndexSelect(r.in("input"), r.int("dim", 0), r.in("index"))
	}
	referenceOps["gather"] = func(r *referenceRun) *Variable {
		return r.tape.Gather(r.in("input"), r.int("dim", 0), r.in("index"))
	}
	referenceOps["embedding"] = func(r *referenceRun) *Variable {
		return r.tape.Embedding(r.in("input"), r.in("weight"),
			tensor.EmbeddingConfig{PaddingIndex: r.ints("padding_idx"), ScaleGradByFreq: r.bool("scale_grad_by_freq", false)})
	}
	referenceOps["scaled_dot_product_attention"] = func(r *referenceRun) *Variable {
		mask := r.optional("attn_mask")
		if mask != nil && r.Inputs["attn_mask"].Int { // a mask of bools
			flags := make([]uint8, len(r.Inputs["attn_mask"].Values))
			for i, v := range r.Inputs["attn_mask"].Values {
				flags[i] = uint8(v)
			}
			mask = Upload(r.tape, flags, r.Inputs["attn_mask"].Shape...)
		}
		return r.tape.ScaledDotProductAttention(r.in("query"), r.in("key"), r.in("value"), AttentionConfig{
			Causal: r.bool("is_causal", false), Mask: mask, Scale: r.float("scale", 0), GQA: r.bool("enable_gqa", false)})
	}
}
