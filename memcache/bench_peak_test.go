package memcache

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkRisingPeak allocates blocks that each raise the peak, and frees them: the cost of an
// allocation and a free while a program grows.
func BenchmarkRisingPeak(b *testing.B) {
	for _, blocks := range []int{60, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s, ctx := dev.stream(1), context.Background()
			list := make([]Block, blocks)
			for i := 0; b.Loop(); i = (i + 1) % blocks {
				if i == 0 {
					for _, block := range list {
						_ = block.Free()
					}
					c.ResetPeakStats()
				}
				list[i], _ = c.Alloc(ctx, 512, s)
			}
		})
	}
}

// BenchmarkPeakProfile computes the owners of the peak by a walk over all blocks. Each new peak
// would cost that much if the result was stored.
func BenchmarkPeakProfile(b *testing.B) {
	for _, blocks := range []int{60, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s := dev.stream(1)
			for i := range blocks {
				ctx := WithModule(context.Background(), fmt.Sprint(i%10))
				if _, err := c.Alloc(ctx, int64(i%7+1)*512, s); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				c.PeakProfile()
			}
		})
	}
}
