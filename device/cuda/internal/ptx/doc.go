// Package ptx embeds the kernel of package cuda: kernels.cu is its source, in CUDA C.
package ptx

import _ "embed"

// Compiled has code for GPUs of compute capability 8.x and 9.0.
//
//go:embed kernels.fatbin
var Compiled []byte

// PTX is for all other GPUs.
//
//go:embed kernels.ptx
var PTX []byte
