package recording

import (
	"os"
	"runtime/debug"
)

// eagerly is the memory in bytes from which on garbage is collected eagerly: a file at the default
// limits then fits below 1 GiB.
const eagerly = 768 << 20

// CollectEagerly is called by commands that read recordings, at their start. A pickle's values are
// garbage as soon as they are read. By default Go's heap grows to twice the memory in use, and free
// memory is returned late. CollectEagerly sets a memory limit above which Go collects sooner and
// returns free memory, unless the environment variable GOMEMLIMIT sets another. The limit is soft:
// no allocation fails.
func CollectEagerly() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(eagerly)
	}
}
