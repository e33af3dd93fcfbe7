package dry

import (
	"embed"
	"io/fs"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

// kernels has the names of the kernels of package tensor and the GPUs that take them: the PTX
// without its code, which only builds with the tag cuda contain. TestKernels writes it with
// -update.
//
//go:embed kernels/*.ptx
var kernels embed.FS

// offerKernels lets package tensor find the names of its kernels in builds without their code.
func offerKernels() {
	if ptxfiles.Tensor == nil {
		ptxfiles.Tensor, _ = fs.Sub(kernels, "kernels") // fails for an invalid path alone
	}
}
