//go:build cuda || emulator

package ptx

import (
	"embed"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

//go:embed *.ptx *.fatbin
var embedded embed.FS

func init() { ptxfiles.Tensor = embedded }
