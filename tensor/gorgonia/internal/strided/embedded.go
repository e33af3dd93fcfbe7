//go:build cuda || emulator

package strided

import _ "embed"

//go:embed strided.ptx
var embedded []byte

func init() { image.PTX = embedded }
