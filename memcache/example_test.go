package memcache_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

// open creates a cache on a host device, and a stream; done releases both.
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

func ExampleCache_Alloc() {
	cache, stream, done := open()
	defer done()
	ctx := context.Background()

	first, err := cache.Alloc(ctx, 1000, stream)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(first.Size(), "bytes for 1000")
	_ = first.Free()
	// What the stream still does with the first block it does before the work that is queued with the second.
	second, _ := cache.Alloc(ctx, 600, stream)
	fmt.Println("the same memory:", second.Ptr() == first.Ptr())
	_ = second.Free()
	fmt.Println("freed twice:", errors.Is(second.Free(), memcache.ErrFreed))
	// Output:
	// 1024 bytes for 1000
	// the same memory: true
	// freed twice: true
}

func ExampleBlock_RecordStream() {
	cache, compute, done := open()
	defer done()
	ctx := context.Background()
	side, _ := cache.Device().NewStream(device.StreamOptions{})
	finish := make(chan struct{})

	block, _ := cache.Alloc(ctx, 1<<20, compute)
	all := []device.Range{block.Range(0, 1<<20)}
	_ = compute.Launch(&device.Launch{Func: func() {}, Writes: all})
	written, _ := cache.Device().NewEvent(device.EventOptions{})
	_ = compute.Record(written)
	_ = side.Wait(written) // orders the work that follows on side
	// The side stream reads the block for as long as finish is open.
	_ = side.Launch(&device.Launch{Func: func() { <-finish }, Reads: all})
	_ = block.RecordStream(side) // keeps the memory
	_ = block.Free()

	early, _ := cache.Alloc(ctx, 1<<20, compute)
	fmt.Println("reused under the side stream:", early.Ptr() == block.Ptr())
	close(finish)
	_ = side.Synchronize(ctx)
	late, _ := cache.Alloc(ctx, 1<<20, compute)
	fmt.Println("reused after it:", late.Ptr() == block.Ptr())
	_ = early.Free()
	_ = late.Free()
	_ = written.Close()
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
	// memcache: out of memory on host: a request asked for 300.00 MiB
	// 	the device has 1024.00 MiB, 1024.00 MiB free; the cache may reserve 256.00 MiB
	// 	the cache reserves 0 bytes: 0 bytes allocated, 0 bytes free
	// 	memory_limit:314572800 (300.00 MiB) would have served it
}

// Blocks of a private pool share no segment with other blocks, for example for a part of the
// program that comes and goes.
func ExampleCache_NewPool() {
	cache, stream, done := open()
	defer done()
	ctx := context.Background()

	pool, _ := cache.NewPool(memcache.PoolOptions{})
	inside := pool.Context(ctx) // which pool serves a request is the context's affair
	a, _ := cache.Alloc(inside, 1<<20, stream)
	_ = a.Free() // without the context: the block returns to its own pool
	b, _ := cache.Alloc(ctx, 1<<20, stream)
	c, _ := cache.Alloc(inside, 1<<20, stream)
	fmt.Println("outside it is not reused:", b.Ptr() != a.Ptr())
	fmt.Println("inside it is:", c.Ptr() == a.Ptr())
	fmt.Println("reserved", cache.MemoryReserved())

	_ = errors.Join(b.Free(), c.Free())
	_ = pool.Release()
	_ = pool.EmptyCache(ctx)
	fmt.Println("reserved without the pool", cache.MemoryReserved())
	_, err := cache.Alloc(inside, 1<<20, stream)
	fmt.Println(errors.Is(err, memcache.ErrReleased))
	// Output:
	// outside it is not reused: true
	// inside it is: true
	// reserved 4194304
	// reserved without the pool 2097152
	// true
}

// A limit leaves the rest of the device to others. Free blocks of the cache are returned before the
// limit is exceeded.
func ExampleCache_SetMemoryFraction() {
	cache, stream, done := open() // of a device with 1 GiB
	defer done()
	ctx := context.Background()

	_ = cache.SetMemoryFraction(0.25)
	a, _ := cache.Alloc(ctx, 200<<20, stream)
	_, err := cache.Alloc(ctx, 100<<20, stream)
	fmt.Println("beside 200 MiB:", errors.Is(err, memcache.ErrOutOfMemory))
	_ = a.Free()
	b, err := cache.Alloc(ctx, 100<<20, stream)
	fmt.Println("in place of them:", err)
	_ = b.Free()
	// Output:
	// beside 200 MiB: true
	// in place of them: <nil>
}

// Before a request fails, the program may free memory that it can do without.
func ExampleCache_OnPressure() {
	cache, stream, done := open()
	defer done()
	ctx := context.Background()

	_ = cache.SetMemoryLimit(100 << 20)
	keep, _ := cache.Alloc(ctx, 90<<20, stream) // such as results that can be computed again
	remove := cache.OnPressure(func(ctx context.Context, need int64) (freed int64) {
		if keep.IsZero() {
			return 0
		}
		freed = keep.Size()
		_ = keep.Free()
		keep = memcache.Block{}
		fmt.Println("asked for", need>>20, "MiB")
		return freed
	})
	defer remove()
	block, err := cache.Alloc(ctx, 50<<20, stream)
	fmt.Println(block.Size()>>20, err)
	_ = block.Free()
	// Output:
	// asked for 50 MiB
	// 50 <nil>
}

// The options of a program that was ported from PyTorch.
func ExampleParseConfig() {
	config, err := memcache.ParseConfig("expandable_segments:True,garbage_collection_threshold:0.8")
	fmt.Println(config.ExpandableSegments, config.GarbageCollectionThreshold, err)
	_, err = memcache.ParseConfig("max_split_size_mb:2")
	fmt.Println(err)
	// Output:
	// true 0.8 <nil>
	// memcache: ParseConfig("max_split_size_mb:2"): memcache: MaxSplitSizeMB is 2: invalid argument: want at least the large segment's 20 MiB, or 0 for no limit
}

// The owners of the memory at the moment of the peak.
func ExampleCache_PeakProfile() {
	cache, stream, done := open()
	defer done()
	step := memcache.WithStep(context.Background(), 17)

	weights, _ := cache.Alloc(memcache.WithCategory(memcache.WithModule(step, "encoder"), memcache.CategoryParameter), 4<<20, stream)
	h, _ := cache.Alloc(memcache.WithCategory(memcache.WithModule(step, "encoder"), memcache.CategoryActivation), 3<<20, stream)
	y, _ := cache.Alloc(memcache.WithCategory(memcache.WithModule(step, "head"), memcache.CategoryActivation), 2<<20, stream)
	_ = h.Free()
	_ = y.Free()

	fmt.Println("now:", cache.Profile().Holdings[0].Label)
	for _, s := range cache.PeakProfile().Sum(func(h memcache.Holding) string { return h.Module + " " + h.Category.String() }) {
		fmt.Println("at the peak:", s.Bytes>>20, "MiB of", s.Name)
	}
	_ = weights.Free()
	// Output:
	// now: encoder (parameter) in step 17
	// at the peak: 4 MiB of encoder parameter
	// at the peak: 3 MiB of encoder activation
	// at the peak: 2 MiB of head activation
}

// A request that finds no memory waits until another task frees some. It does not wait for blocks
// of no task, because those count as permanent.
func ExampleCache_Wait() {
	dev, _ := device.Open("host?capacity=1GiB")
	stream, _ := dev.NewStream(device.StreamOptions{})
	ctx := context.Background()

	cache, err := memcache.New(dev, memcache.Config{MemoryLimit: 100 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	first, _ := cache.Alloc(cache.Wait(ctx), 80<<20, stream)
	served := make(chan struct{})
	go func() {
		defer close(served)
		second, err := cache.Alloc(cache.Wait(ctx), 80<<20, stream) // waits for first
		fmt.Println("second:", err, second.Free())
	}()
	fmt.Println("first is freed")
	_ = first.Free()
	<-served

	permanent, _ := cache.Alloc(ctx, 80<<20, stream) // of no task
	_, err = cache.Alloc(cache.Wait(ctx), 80<<20, stream)
	fmt.Println("fails at once:", errors.Is(err, memcache.ErrOutOfMemory))
	fmt.Println(errors.Join(permanent.Free(), cache.Close(), stream.Close(), dev.Close()))
	// Output:
	// first is freed
	// second: <nil> <nil>
	// fails at once: true
	// <nil>
}
