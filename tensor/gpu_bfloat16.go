package tensor

// doesBFloat16 is bfloat16Kernels.doesBFloat16. Kernels for bfloat16 read and write it, and compute in float32: any GPU does. Products of the library take
// one of compute capability 8.0, and cuBLASLt, which adds a bias before the sum is rounded.
func (g *gpuKernels) doesBFloat16(operation string) bool {
	switch operation {
	case "matmul":
		return g.blas == nil || (g.fused && g.blas.MatMulBFloat16())
	case "transpose", "unary", "binary", "repeat", "addBias", "apply", "applyGrad", "softmax", "softmaxGrad", "crossEntropy", "crossEntropyGrad",
		"normalize", "normalizeGrad", "normalizeWeightGrad", "sum", "takeGrad", "norm", "clip", "bound", "sgdGrad", "adamGrad":
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
