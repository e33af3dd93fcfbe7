// Package ptxfiles holds the compiled GPU kernels of package tensor in builds that can load them.
package ptxfiles

import "io/fs"

// Tensor has the .ptx and .fatbin files of tensor/internal/ptx. It is nil unless the program is built
// with the tag cuda or emulator, because these files take 14 MB of a program that has no use for
// them. Tests of simulated GPUs set it to the folder.
var Tensor fs.FS
