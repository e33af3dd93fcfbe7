// Package gpuop is the backend of devices that load PTX. It runs operations with the kernels of
// package ptx, and products also with the device's library.
package gpuop
