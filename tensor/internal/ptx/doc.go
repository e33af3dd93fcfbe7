// Package ptx holds the kernels of package tensor for GPUs: CUDA C, a file for each family, with a
// fatbin for compute capability 8.x and 9.0, and PTX, which the driver compiles for any other GPU.
package ptx
