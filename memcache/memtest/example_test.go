package memtest_test

import (
	"context"
	"testing"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/memtest"
)

// A test of a program that uses only the allocator. The directory examples/budget contains a test
// of a model.
func Example() {
	_ = func(t *testing.T) { // func TestWork(t *testing.T)
		dev, err := device.Open("host")
		if err != nil {
			t.Fatal(err)
		}
		stream, err := dev.NewStream(device.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cache, err := memcache.New(dev, memcache.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close(); stream.Close(); dev.Close() })

		memtest.NoLeak(t, cache)
		memtest.Golden(t, cache, "testdata/work.memory", func() {
			ctx := memcache.WithModule(context.Background(), "buffers")
			block, err := cache.Alloc(ctx, 1<<20, stream)
			if err != nil {
				t.Fatal(err)
			}
			block.Free()
		})
	}
}
