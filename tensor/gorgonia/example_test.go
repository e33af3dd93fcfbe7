package gorgonia_test

import (
	"errors"
	"fmt"
	"log"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

// Tensors of gorgonia.org/tensor with memory of the cache.
func ExampleEngine() {
	dev, err := device.Open("host?capacity=64MiB")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	engine, err := gorgonia.NewEngine(cache, stream)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	weights, err := engine.New(gtensor.WithShape(3, 2), gtensor.WithBacking([]float32{1, 0, 0, 1, 1, 1}))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Release(weights)

	lifetime := engine.NewLifetime() // frees what the step allocates
	x := gtensor.New(gtensor.WithEngine(engine), gtensor.Of(gtensor.Float32), gtensor.WithShape(2, 3))
	x.Memset(float32(2))
	y, err := gtensor.MatMul(x, weights)
	if err != nil {
		log.Fatal(err)
	}
	sum, err := gtensor.Sum(y, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum)
	fmt.Println(cache.MemoryAllocated(), "bytes in the step")
	if err := lifetime.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cache.MemoryAllocated(), "bytes after it")

	_, err = engine.New(gtensor.Of(gtensor.Float32), gtensor.WithShape(1<<20, 1<<10))
	fmt.Println("4 GiB:", errors.Is(err, memcache.ErrOutOfMemory))
	// Output:
	// [8  8]
	// 2048 bytes in the step
	// 512 bytes after it
	// 4 GiB: true
}
