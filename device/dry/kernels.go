package dry

import (
	"embed"
	"io/fs"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

// kernels lists package tensor's kernels and the GPUs that accept them. It is the PTX without its
// code, because only builds with the tag cuda contain the code. TestKernels writes it with -update.
//
//go:embed kernels/*.ptx
var kernels embed.FS

// offerKernels provides package tensor with the names of its kernels in builds without their code.
func offerKernels() {
	if ptxfiles.Tensor == nil {
		ptxfiles.Tensor, _ = fs.Sub(kernels, "kernels") // fails only for an invalid path
	}
}
