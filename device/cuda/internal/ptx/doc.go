// Package ptx holds the kernel of package cuda: kernels.cu in CUDA C, and what nvcc makes of it for compute capability
// 7.0, which the driver compiles for any later GPU.
package ptx

import _ "embed"

// Image is the module to load.
//
//go:embed kernels.ptx
var Image []byte
