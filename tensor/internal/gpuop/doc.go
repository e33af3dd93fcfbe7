// Package gpuop is the backend of devices that load PTX: it runs operations by the kernels of
// package ptx, and products also by the device's library.
//
// A table has a kernel and its arguments for each operation. Which dtypes there are follows from
// the kernels that the PTX has.
package gpuop
