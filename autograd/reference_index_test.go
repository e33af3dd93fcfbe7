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
}
