//go:build !purego

package simd

import "golang.org/x/sys/cpu"

// Available returns the levels that this processor runs, the plainest first.
func Available() []Level {
	all := []Level{Generic}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		all = append(all, AVX2)
		if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL {
			all = append(all, AVX512)
		}
	}
	return all
}
