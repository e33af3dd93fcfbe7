package host_test

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// A kernel on one stream, its result copied back on another: the event is the hand-over. Without it, this example
// would be a data race, which go test -race reports.
func Example() {
	dev, err := host.New(host.Config{Capacity: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	compute, _ := dev.NewStream(device.StreamOptions{})
	download, _ := dev.NewStream(device.StreamOptions{})
	ready, _ := dev.NewEvent(device.EventOptions{})
	x, _ := dev.Alloc(4)
	result, _ := dev.AllocPinned(4)

	_ = compute.Memset(x, 20, 4)
	bytes, _ := dev.Bytes(x, 4)
	_ = compute.Launch(&device.Launch{
		Name:   "double",
		Reads:  []device.Range{{Ptr: x, Bytes: 4}},
		Writes: []device.Range{{Ptr: x, Bytes: 4}},
		Func: func() {
			for i := range bytes {
				bytes[i] *= 2
			}
		},
	})
	_ = compute.Record(ready)
	_ = download.Wait(ready)
	_ = download.CopyD2H(result, x)
	_ = download.Synchronize(context.Background())
	fmt.Println(result)

	_ = dev.FreePinned(result)
	_ = dev.Free(x)
	fmt.Println(dev.Close())
	// Output:
	// [40 40 40 40]
	// <nil>
}

func ExampleDevice_Fail() {
	dev, _ := host.New(host.Config{Capacity: 1 << 20})
	defer dev.Close()
	dev.Fail(host.FaultAlloc, 1)
	_, err := dev.Alloc(512)
	fmt.Println(err)
	// Output:
	// device: Alloc of 512 B on host: out of memory (code 2): asked for 512 bytes, 1048576 of 1048576 are free (1.0 MiB of 1.0 MiB)
}
