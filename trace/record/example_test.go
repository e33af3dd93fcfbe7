package record_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/record"
)

// Example records three steps of a program. Steps are numbered from 1.
func Example() {
	dev, _ := host.New(host.Config{Capacity: 64 << 20})
	defer dev.Close()
	cache, _ := memcache.New(dev, memcache.Config{})
	defer cache.Close()
	stream, _ := dev.NewStream(device.StreamOptions{})

	f, _ := os.Create(filepath.Join(os.TempDir(), "cistern-example.jsonl.gz"))
	defer os.Remove(f.Name())
	recorder, err := record.Start(f, cache, record.Options{Gzip: true, Stacks: memcache.StacksAlloc})
	if err != nil {
		fmt.Println(err)
		return
	}
	for n := int64(1); n <= 3; n++ {
		step := recorder.Step(n)
		ctx := memcache.WithStep(context.Background(), n)
		block, _ := cache.Alloc(ctx, 1<<20, stream)
		_ = block.Free()
		step.End()
	}
	fmt.Println(recorder.Close(), f.Close())
	// Output: <nil> <nil>
}
