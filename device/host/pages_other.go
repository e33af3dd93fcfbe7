//go:build !linux

package host

func newPages(bytes int64) ([]byte, error) { return aligned(bytes, alignment), nil }

func freePages([]byte) {}

func clearPages(b []byte) { clear(b) }
