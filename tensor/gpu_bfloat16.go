package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// doesBFloat16 is bfloat16Kernels.doesBFloat16. Kernels for bfloat16 read and write it, and compute in float32: any GPU does. Products of the library take
// one of compute capability 8.0, and cuBLASLt, which adds the bias.
func (g *gpuKernels) doesBFloat16(operation string) bool {
	switch operation {
	case "matmul":
		return g.blas == nil || (g.fused && g.blas.MatMulBFloat16())
	case "transpose", "unary", "binary", "repeat", "addBias", "apply", "applyGrad", "softmax", "softmaxGrad", "crossEntropy", "crossEntropyGrad",
		"normalize", "normalizeGrad", "normalizeWeightGrad", "sum", "takeGrad", "norm", "clip", "bound", "sgdGrad", "adamGrad",
		"attention", "attentionGrad":
		return true
	}
	return false
}

// eight is for a launch over n elements, of which a thread takes eight at a time if they are of bfloat16.
func (l *gpuLaunch) eight(n int) {
	if l.suffix == "_bf16" {
		l.Grid[0] = blocks(n, 8*256)
	}
}

// The editions of the kernels of attention of bfloat16, by the most columns of queries, keys and values: how many rows a tile has.
var attentionEditions = [...]struct {
	columns, rows int
	suffix        string
}{{64, 64, "_64_bf16"}, {128, 32, "_128_bf16"}}

// attendsBFloat16 is for attention without a mask, and heads of up to 128 columns, on a GPU that takes the module.
func (g *gpuKernels) attendsBFloat16(p *kernel.Attention) bool {
	last := attentionEditions[len(attentionEditions)-1]
	return p.Masking == kernel.NoMask && max(p.E, p.V) <= last.columns && g.hasMatrixUnits()
}

// attentionTiles changes a launch over tiles of so many rows to one of the kernel for bfloat16, if it is one.
func (l *gpuLaunch) attentionTiles(p *kernel.Attention, rows int) {
	if l.suffix != "_bf16" {
		return
	}
	for _, e := range attentionEditions {
		if max(p.E, p.V) <= e.columns {
			l.suffix = e.suffix
			l.Grid[0], l.Grid[2] = blocks(rows, e.rows), 1
			l.Block = [3]uint32{uint32(2 * e.rows), 1, 1}
			return
		}
	}
}
