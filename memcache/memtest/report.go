package memtest

import (
	"context"
	"testing"

	"github.com/cistern-ml/cistern/memcache"
)

// Report adds the cache's figures from the call to the benchmark's end to its metrics. Call it
// right before the loop.
//
//	peak-B            the largest number of allocated bytes
//	reserved-B        the largest number of bytes held from the driver
//	blocks/op         allocated blocks
//	driver-allocs/op  driver allocations
func Report(b *testing.B, cache *memcache.Cache) {
	b.Helper()
	if cache == nil {
		b.Fatal("memtest: the cache is nil")
	}
	_, scope := cache.Scope(context.Background(), "memtest")
	b.Cleanup(func() {
		scope.End()
		w, n := scope.Window(), float64(max(b.N, 1))
		b.ReportMetric(float64(w.Allocated.Peak), "peak-B")
		b.ReportMetric(float64(w.Reserved.Peak), "reserved-B")
		b.ReportMetric(float64(w.Allocations)/n, "blocks/op")
		b.ReportMetric(float64(w.DriverAllocs)/n, "driver-allocs/op")
	})
}
