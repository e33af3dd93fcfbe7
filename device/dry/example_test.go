package dry_test

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/dry"
	"github.com/cistern-ml/cistern/memcache"
)

// Example allocates 60 GiB of an H100 on a machine that has no GPU.
func Example() {
	dev, err := device.Open("dry:cuda?gpu=H100")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	cache, _ := memcache.New(dev, memcache.Config{})
	defer cache.Close()
	stream, _ := dev.NewStream(device.StreamOptions{})
	block, err := cache.Alloc(context.Background(), 60<<30, stream)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cache.MemoryAllocated()>>30, block.Free())
	// Output: 60 <nil>
}
