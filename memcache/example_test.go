package memcache_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

// open makes a cache on a host device, and a stream; done releases all.
func open() (cache *memcache.Cache, stream device.Stream, done func()) {
	dev, err := device.Open("host?capacity=1GiB")
	if err != nil {
		panic(err)
	}
	cache, err = memcache.New(dev, memcache.Config{})
	if err != nil {
		panic(err)
	}
	stream, err = dev.NewStream(device.StreamOptions{})
	if err != nil {
		panic(err)
	}
	return cache, stream, func() {
		if err := errors.Join(cache.Close(), dev.Close()); err != nil {
			panic(err)
		}
	}
}

func Example() {
	cache, stream, done := open()
	defer done()
	ctx := context.Background()

	a, _ := cache.Alloc(ctx, 3<<20, stream)
	b, _ := cache.Alloc(ctx, 1000, stream)
	fmt.Println("allocated", cache.MemoryAllocated(), "reserved", cache.MemoryReserved())
	_ = a.Free()
	_ = b.Free()
	fmt.Println("allocated", cache.MemoryAllocated(), "at most", cache.MaxMemoryAllocated())
	_ = cache.EmptyCache(ctx)
	fmt.Println("reserved", cache.MemoryReserved())
	// Output:
	// allocated 3146752 reserved 23068672
	// allocated 0 at most 3146752
	// reserved 0
}

func ExampleBlock_RecordStream() {
	cache, compute, done := open()
	defer done()
	ctx := context.Background()
	side, _ := cache.Device().NewStream(device.StreamOptions{})
	finish := make(chan struct{})

	block, _ := cache.Alloc(ctx, 1<<20, compute)
	// The side stream uses the block for as long as finish is open.
	_ = side.Launch(&device.Launch{Func: func() { <-finish }, Reads: []device.Range{block.Range(0, 1<<20)}})
	_ = block.RecordStream(side)
	_ = block.Free()

	early, _ := cache.Alloc(ctx, 1<<20, compute)
	fmt.Println("reused under the side stream:", early.Ptr() == block.Ptr())
	close(finish)
	_ = side.Synchronize(ctx)
	late, _ := cache.Alloc(ctx, 1<<20, compute)
	fmt.Println("reused after it:", late.Ptr() == block.Ptr())
	_ = early.Free()
	_ = late.Free()
	// Output:
	// reused under the side stream: false
	// reused after it: true
}

func ExampleCache_Scope() {
	cache, stream, done := open()
	defer done()

	ctx, scope := cache.Scope(context.Background(), "forward")
	x, _ := cache.Alloc(ctx, 4096, stream)
	y, _ := cache.Alloc(ctx, 4096, stream)
	_ = x.Free()
	scope.End()
	fmt.Printf("peak %d, still live %d\n", scope.Own().Peak, scope.Own().Live)
	_ = y.Free()
	fmt.Printf("still live %d\n", scope.Own().Live)
	// Output:
	// peak 8192, still live 4096
	// still live 0
}

func ExampleOutOfMemoryError() {
	cache, stream, done := open()
	defer done()
	_ = cache.SetMemoryFraction(0.25)

	_, err := cache.Alloc(context.Background(), 300<<20, stream)
	var oom *memcache.OutOfMemoryError
	if errors.As(err, &oom) {
		fmt.Println(oom)
	}
	// Output:
	// memcache: out of memory on host: 300.00 MiB are asked for (a segment of 300.00 MiB); the device has 1024.00 MiB, of which 1024.00 MiB are free; the cache may reserve 256.00 MiB; 0 bytes are reserved: 0 bytes allocated, 0 bytes freed but in use by a recorded stream, 0 bytes free (the largest free block of this pool and stream has 0 bytes)
}
