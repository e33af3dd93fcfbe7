package tensor

// doesBFloat16 is bfloat16Kernels.doesBFloat16. Kernels for bfloat16 read and write it, and compute in float32: any GPU does. Products of the library take
// one of compute capability 8.0, and cuBLASLt, which adds a bias before the sum is rounded.
func (g *gpuKernels) doesBFloat16(operation string) bool {
	switch operation {
	case "matmul":
		return g.blas == nil || (g.fused && g.blas.MatMulBFloat16())
	case "transpose", "unary":
		return true
	}
	return false
}
