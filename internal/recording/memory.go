package recording

import (
	"os"
	"runtime/debug"
)

// eagerly is from how many bytes on memory is collected eagerly: a file at the default limits fits below 1 GiB then.
const eagerly = 768 << 20

// CollectEagerly is for commands that read recordings, at their start. A pickle's values are garbage as soon as they are read, and
// on its own Go lets as much garbage be there as there is in use, and more that it has not given back. From some size on it
// collects sooner and gives back what is free; the environment variable GOMEMLIMIT says another size. Nothing fails for it.
func CollectEagerly() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(eagerly)
	}
}
