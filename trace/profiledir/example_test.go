package profiledir_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/profiledir"
)

// Example profiles four steps into a folder, the second one closely.
func Example() {
	name, _ := os.MkdirTemp("", "profiles")
	defer os.RemoveAll(name)
	dir, err := profiledir.New(name, profiledir.Options{Name: "my model", Steps: profiledir.StepSet{{2, 2}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	dev, _ := host.New(host.Config{Capacity: 64 << 20})
	defer dev.Close()
	memory, _ := dir.Observers()
	cache, _ := memcache.New(dev, memcache.Config{Observer: memory})
	defer cache.Close()
	stream, _ := dev.NewStream(device.StreamOptions{Launching: dir.Launching})
	err = dir.Watch(cache)
	profiler, _ := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream,
		Starting: dir.Starting, Holders: true, OnProfile: dir.OnProfile})
	for n := int64(1); n <= 4; n++ {
		look := dir.Step(n)
		ctx, step := profiler.StartStep(context.Background(), n)
		ctx = look.Begin(ctx)
		block, _ := cache.Alloc(ctx, 1<<20, stream)
		_ = block.Free()
		look.End()
		step.End()
		look.Write()
	}
	fmt.Println(err, profiler.Close(), dir.Close())
	files, _ := os.ReadDir(name)
	for _, f := range files {
		fmt.Println(f.Name())
	}
	// Output:
	// <nil> <nil> <nil>
	// heap.pb.gz
	// peak.pb.gz
	// recording.jsonl.gz
	// report.html
	// snapshot.pickle
	// step-2.pb.gz
	// trace.json
}
