// Package ptxfiles holds the compiled GPU kernels of package tensor in builds that can load them.
package ptxfiles

import "io/fs"

// Tensor has the .ptx and .fatbin files of tensor/internal/ptx. It is nil unless the program is
// built with the tag cuda or emulator, because these files add 14 MB to a program. Tests of
// simulated GPUs set it to the folder.
var Tensor fs.FS
