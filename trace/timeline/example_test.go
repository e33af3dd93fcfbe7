package timeline_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	_ "github.com/cistern-ml/cistern/device/host"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/timeline"
)

// A program writes trace.json while it runs.
func Example() {
	f, err := os.CreateTemp("", "trace")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(f.Name())
	tl, err1 := timeline.New(f)
	dev, err2 := device.Open("host?capacity=64MiB")
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}
	memory := tl.Memory()
	cache, err1 := memcache.New(dev, memcache.Config{Observer: memory})
	stream, err2 := dev.NewStream(device.StreamOptions{Launching: tl.Launching})
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}
	memory.Watch(cache)

	block, err := cache.Alloc(memcache.WithModule(context.Background(), "encoder.0"), 1<<20, stream)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := errors.Join(block.Free(), tl.Close(), f.Close(), cache.Close(), stream.Close(), dev.Close()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("open trace.json in ui.perfetto.dev")
	// Output: open trace.json in ui.perfetto.dev
}
