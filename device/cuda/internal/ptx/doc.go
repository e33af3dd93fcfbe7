// Package ptx holds the kernel of package cuda: kernels.cu in CUDA C, and what it was compiled to.
package ptx

import _ "embed"

// Compiled is for GPUs of compute capability 8.x and 9.0.
//
//go:embed kernels.fatbin
var Compiled []byte

// PTX is for all others.
//
//go:embed kernels.ptx
var PTX []byte
