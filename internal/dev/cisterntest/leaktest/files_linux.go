package leaktest

import (
	"os"
	"path/filepath"
	"strings"
)

// files counts the open files of the process by name. The runtime's own descriptors for polling do
// not count, because it opens them with the first file that needs them, and keeps them. With a
// GPU's driver files returns nil, because the driver keeps files, pipes and sockets of its own.
func files() map[string]int {
	const dir = "/proc/self/fd"
	open := map[string]int{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if strings.HasPrefix(name, "/dev/nvidia") {
			return nil
		}
		// an error belongs to the descriptor of ReadDir
		if err == nil && !strings.HasPrefix(name, "anon_inode:") {
			open[name]++
		}
	}
	return open
}
