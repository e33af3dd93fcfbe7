package memcache

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is.
var (
	// ErrClosed: the cache is closed.
	ErrClosed = errors.New("cache is closed")
	// ErrFreed: the block was freed before.
	ErrFreed = errors.New("block was already freed")
	// ErrInvalid: an argument is wrong, and nothing changed; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)

// ErrReleased says that the private pool was released: it hands out no more blocks.
var ErrReleased = errors.New("private pool was released")

// formatBytes prints bytes as PyTorch's messages do.
func formatBytes(n int64) string {
	switch f := float64(n); {
	case n <= 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n <= 1<<20:
		return fmt.Sprintf("%.2f KiB", f/(1<<10))
	case n <= 1<<30:
		return fmt.Sprintf("%.2f MiB", f/(1<<20))
	default:
		return fmt.Sprintf("%.2f GiB", f/(1<<30))
	}
}
