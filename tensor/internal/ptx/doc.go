// Package ptx holds the kernels of package tensor for GPUs: CUDA C, a file for each family, and what nvcc makes of it for
// compute capability 7.0, which the driver compiles for any later GPU.
package ptx
