// Package emulator runs GPU kernels on an ordinary processor, so that a machine without a GPU can
// test their indices, sums and barriers. build.sh compiles the CUDA C of the repository as C++,
// with cuda.h instead of CUDA's own definitions. The device "emulated" is a host device that takes
// kernels of modules, as a GPU does, instead of Go functions.
//
// It is slow, and shows nothing that only a GPU has: the order of memory between blocks, registers,
// time.
package emulator
