// Package sizes defines the sizes of PyTorch's allocator, in bytes, for the cache and for the
// replay, which simulates caches with unknown limits. (The model of the tests has its own, so that
// it can detect errors here.)
package sizes

import "fmt"

// PyTorch 2.11's sizes without options.
const (
	MinBlock     = 512      // every block is a multiple of this
	SmallLimit   = 1 << 20  // requests up to this size use the small pool
	SmallSegment = 2 << 20  // a segment of the small pool
	MinLarge     = 10 << 20 // requests from this size on get a segment of their own
	LargeSegment = 20 << 20 // the segment for requests between SmallLimit and MinLarge, by default
	RoundLarge   = 2 << 20  // the unit of these segments
)

// Format prints bytes as PyTorch's messages do.
func Format(n int64) string {
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
