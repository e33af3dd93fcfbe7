package heap_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	_ "github.com/cistern-ml/cistern/device/host"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/heap"
)

// A program writes the memory in use, at the peak and in total into one file for go tool pprof.
func Example() {
	dev, err := device.Open("host?capacity=64MiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	var counter heap.Counter
	cache, err1 := memcache.New(dev, memcache.Config{Observer: &counter})
	stream, err2 := dev.NewStream(device.StreamOptions{})
	ctx := memcache.WithCategory(memcache.WithModule(context.Background(), "encoder.0"), memcache.CategoryActivation)
	block, err3 := cache.Alloc(ctx, 1<<20, stream)
	if err := errors.Join(err1, err2, err3); err != nil {
		fmt.Println(err)
		return
	}

	h := heap.Of(cache)
	h.Allocated = counter.Holdings()
	f, err := os.CreateTemp("", "heap")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(f.Name())
	if err := errors.Join(h.Write(f), f.Close()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("go tool pprof -top -sample_index=peak_space heap.pb.gz")

	if err := errors.Join(block.Free(), cache.Close(), stream.Close(), dev.Close()); err != nil {
		fmt.Println(err)
	}
	// Output: go tool pprof -top -sample_index=peak_space heap.pb.gz
}

// With call stacks the profile has the lines of the program that hold the memory.
func ExampleOf() {
	dev, err1 := device.Open("host?capacity=64MiB")
	cache, err2 := memcache.New(dev, memcache.Config{})
	stream, err3 := dev.NewStream(device.StreamOptions{})
	err4 := cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16, Stacks: memcache.StacksAlloc})
	block, err5 := cache.Alloc(context.Background(), 1<<20, stream)
	file, err6 := os.CreateTemp("", "heap")
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(file.Name())

	err := heap.Of(cache).Write(file)
	err = errors.Join(err, file.Close())

	fmt.Println(errors.Join(err, block.Free(), cache.Close(), stream.Close(), dev.Close()))
	// Output: <nil>
}
