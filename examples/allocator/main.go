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
	// ... queue work on compute and on side that uses block.Ptr() ...
	check(block.RecordStream(side)) // work on side uses the block, too
	check(block.Free())             // reused when both streams have passed this point
	fmt.Println(cache.MemoryAllocated(), cache.MaxMemoryAllocated(), cache.MemoryReserved())
	fmt.Print(cache.Summary())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
