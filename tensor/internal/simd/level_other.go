//go:build purego || !(amd64 || arm64)

package simd

// Available returns the levels that this processor runs, the plainest first.
func Available() []Level { return []Level{Generic} }
