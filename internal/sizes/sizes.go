// Package sizes has the sizes of PyTorch's allocator, in bytes: of the cache and of the replay, which
// reasons about a cache with unknown limits. (The model of the tests has its own, to find what is wrong here.)
package sizes

import "fmt"

// What PyTorch 2.11 does without options.
const (
	MinBlock     = 512      // every block is a multiple of this
	SmallLimit   = 1 << 20  // up to this a request is served from the small pool
	SmallSegment = 2 << 20  // a segment of the small pool
	MinLarge     = 10 << 20 // from this on a request gets a segment of its own
	LargeSegment = 20 << 20 // the segment for requests between SmallLimit and MinLarge, by default
	RoundLarge   = 2 << 20  // segments of their own are multiples of this
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
