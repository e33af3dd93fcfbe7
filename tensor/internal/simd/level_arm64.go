//go:build !purego

package simd

import "golang.org/x/sys/cpu"

// Available returns the levels that this processor runs, the plainest first.
func Available() []Level {
	if cpu.ARM64.HasASIMD {
		return []Level{Generic, NEON}
	}
	return []Level{Generic}
}
