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
// memory is returned late. From some size on CollectEagerly makes Go collect sooner and return free
// memory; the environment variable GOMEMLIMIT replaces that size. It is
// a soft limit: no allocation fails.
func CollectEagerly() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(eagerly)
	}
}
