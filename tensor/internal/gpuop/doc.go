// Package gpuop is the backend of devices that load PTX. It runs operations with the kernels of
// package ptx, and products also with the device's library.
//
// A table lists the kernel of each operation and the function that launches it. The dtypes of an
// operation follow from the kernels in the PTX.
package gpuop
