package tensor_test

import (
	"context"
	"fmt"
	"log"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

func ExampleRuntime() {
	ctx := context.Background()
	dev, err := device.Open("host")
	must(err)
	defer dev.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	must(err)
	defer cache.Close()
	pool, err := transfer.New(dev, transfer.Config{})
	must(err)
	defer pool.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	must(err)
	defer stream.Close()
	rt, err := tensor.NewRuntime(cache, pool, stream)
	must(err)
	defer rt.Close()

	ctx, life := tensor.WithLifetime(ctx) // releases everything below
	defer life.Close()
	x, err := tensor.FromSlice(ctx, rt, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	must(err)
	w, err := rt.Full(ctx, 0.5, gtensor.Float32, 3, 2)
	must(err)
	y, err := rt.MatMul(ctx, x, w)
	must(err)
	fmt.Println(y)
	values, err := tensor.ToSlice[float32](ctx, y, nil)
	must(err)
	fmt.Println(values)
	fmt.Println(cache.MemoryAllocated(), "bytes")
	// Output:
	// float32 (2, 2) on host
	// [3 3 7.5 7.5]
	// 1536 bytes
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
