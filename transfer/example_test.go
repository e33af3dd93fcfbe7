package transfer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// setUp opens what the examples need, and closeAll closes it. Errors are left out for brevity.
func setUp() (cache *memcache.Cache, pool *transfer.Pool, stream device.Stream, closeAll func()) {
	dev, _ := device.Open("host?capacity=64MiB")
	cache, _ = memcache.New(dev, memcache.Config{})
	pool, _ = transfer.New(dev, transfer.Config{})
	stream, _ = dev.NewStream(device.StreamOptions{})
	return cache, pool, stream, func() {
		pool.Close()
		stream.Close()
		cache.Close()
		dev.Close()
	}
}

func Example() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	block, _ := cache.Alloc(ctx, 4*4, stream)
	defer block.Free()
	buf, _ := pool.Get(ctx, 4*4)
	numbers, _ := transfer.As[float32](buf)
	copy(numbers, []float32{1, 2, 3, 4})
	pool.H2D(ctx, stream, block, 0, buf, 0, 4*4)
	_, err := transfer.As[float32](buf)
	fmt.Println("while the copy may be in flight:", err != nil || numbers[3] == 4)
	buf.Release() // reused when the copy is done

	back := make([]byte, 4*4)
	err = pool.Download(ctx, stream, back, block, 0)
	fmt.Println(back, err)
	// Output:
	// while the copy may be in flight: true
	// [0 0 128 63 0 0 0 64 0 0 64 64 0 0 128 64] <nil>
}

func ExamplePool_Upload() {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()

	block, _ := cache.Alloc(ctx, 5, stream)
	text := []byte("hello")
	done, _ := pool.Upload(ctx, stream, block, 0, text)
	clear(text) // text may be reused at once
	fmt.Println(done.Wait(ctx))

	pool.Download(ctx, stream, text, block, 0)
	fmt.Printf("%s\n", text)
	block.Free()

	_, err := pool.Upload(ctx, stream, block, 510, text)
	fmt.Println(errors.Is(err, transfer.ErrRange))
	// Output:
	// <nil>
	// hello
	// true
}
