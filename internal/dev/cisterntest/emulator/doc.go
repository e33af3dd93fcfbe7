// Package emulator runs the kernels for GPUs on an ordinary processor, so that a machine without a GPU can test them: their
// indices, their sums, where their threads wait for each other. build.sh compiles the CUDA C of the repository as C++, with
// cuda.h in the place of what CUDA gives it; the device "emulated" is a host device that takes kernels of modules as a GPU
// does, in the place of Go functions.
//
// It is slow, and says nothing about what only a GPU has: the order of memory between blocks, registers, time.
package emulator
