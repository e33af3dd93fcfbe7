// Package ptx holds the GPU kernels of package tensor. Each family of kernels is a CUDA C file,
// compiled to a fatbin for compute capability 8.x and 9.0, and to PTX, which the driver compiles
// for any other GPU.
package ptx
