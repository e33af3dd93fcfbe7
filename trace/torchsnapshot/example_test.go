package torchsnapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	_ "github.com/cistern-ml/cistern/device/host"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// A program records from the start, and writes a file for PyTorch's viewers at its end.
func Example() {
	dev, err := device.Open("host?capacity=64MiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	config := memcache.Config{Exact: true}
	cache, err1 := memcache.New(dev, config)
	stream, err2 := dev.NewStream(device.StreamOptions{})
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}
	err1 = cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16, Stacks: memcache.StacksAll})
	ctx := memcache.WithCategory(memcache.WithModule(context.Background(), "encoder.0"), memcache.CategoryActivation)
	block, err2 := cache.Alloc(ctx, 1<<20, stream)
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}

	f, err := os.CreateTemp("", "snapshot")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(f.Name())
	err = torchsnapshot.Write(f, torchsnapshot.State{Snapshot: cache.Snapshot(), Config: config})
	if err := errors.Join(err, f.Close()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("python -m torch.cuda._memory_viz trace_plot snapshot.pickle -o timeline.html")

	if err := errors.Join(block.Free(), cache.Close(), stream.Close(), dev.Close()); err != nil {
		fmt.Println(err)
	}
	// Output: python -m torch.cuda._memory_viz trace_plot snapshot.pickle -o timeline.html
}
