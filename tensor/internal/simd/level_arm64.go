//go:build !purego

package simd

import "golang.org/x/sys/cpu"

// Available are the levels that this processor runs, the plainest first.
func Available() []Level {
	if cpu.ARM64.HasASIMD {
		return []Level{Generic, NEON}
	}
	return []Level{Generic}
}
