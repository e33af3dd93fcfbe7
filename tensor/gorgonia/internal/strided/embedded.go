//go:build cuda || emulator

package strided

import "embed"

//go:embed strided.ptx strided.fatbin
var embedded embed.FS

func init() { image.Files = embedded }
