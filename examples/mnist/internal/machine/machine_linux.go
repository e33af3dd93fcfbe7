// Package machine reads the size of the machine that the program runs on.
package machine

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Memory returns the bytes of memory of the machine, or of the container, or 0 if the system
// doesn't report them.
func Memory() int64 {
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) != nil {
		return 0
	}
	memory := int64(uint64(info.Totalram) * uint64(info.Unit))
	text, _ := os.ReadFile("/sys/fs/cgroup/memory.max")
	if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
		memory = min(memory, limit)
	}
	return memory
}
