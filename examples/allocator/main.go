// Allocator allocates a block, uses it on two streams and prints the cache's statistics.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

func main() {
	ctx := context.Background()
	dev, err := device.Open("host?capacity=1GiB")
	check(err)
	defer dev.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	check(err)
	defer cache.Close()
	compute, err := dev.NewStream(device.StreamOptions{})
	check(err)
	side, err := dev.NewStream(device.StreamOptions{})
	check(err)

	block, err := cache.Alloc(ctx, 3<<20, compute)
	check(err)
	// ... queue work on compute that writes to block.Ptr() ...
	written, err := dev.NewEvent(device.EventOptions{})
	check(err)
	defer written.Close()
	check(compute.Record(written))
	check(side.Wait(written)) // the work that follows on side sees the writes
	// ... queue work on side that reads block.Ptr() ...
	check(block.RecordStream(side)) // keeps the memory for side
	check(block.Free())             // reused when both streams have passed this point
	fmt.Println(cache.MemoryAllocated(), cache.MaxMemoryAllocated(), cache.MemoryReserved())
	fmt.Print(cache.Summary())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
