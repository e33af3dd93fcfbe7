package device_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host" // makes "host" known to Open
)

// One stream writes memory, another one copies it to the host. The event orders them: operations
// queued on download after Wait run when everything queued on compute before Record is done.
func Example() {
	dev, err := device.Open("host?capacity=1MiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	compute, _ := dev.NewStream(device.StreamOptions{})
	download, _ := dev.NewStream(device.StreamOptions{})
	written, _ := dev.NewEvent(device.EventOptions{})
	x, _ := dev.Alloc(4)
	result, _ := dev.AllocPinned(4) // copies need pinned host memory

	_ = compute.Memset(x, 7, 4)
	_ = compute.Record(written)
	_ = download.Wait(written)
	_ = download.CopyD2H(result, x)
	_ = download.Synchronize(context.Background()) // the only call that waits on the host
	fmt.Println(result)

	_ = dev.FreePinned(result)
	_ = dev.Free(x)
	fmt.Println(dev.Close())
	// Output:
	// [7 7 7 7]
	// <nil>
}

// Programs act on an error's class, with errors.Is; an Error has the figures.
func ExampleError() {
	dev, _ := device.Open("host?capacity=1MiB")
	defer dev.Close()
	_, err := dev.Alloc(2 << 20)
	fmt.Println(errors.Is(err, device.ErrOutOfMemory))
	var e *device.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, e.Bytes, e.Code)
	}
	// Output:
	// true
	// Alloc 2097152 2
}

// If a backend is not imported, the error describes what to do. An option that a backend does not
// have is an error, too.
func ExampleOpen() {
	_, err := device.Open("cuda:0")
	fmt.Println(errors.Is(err, device.ErrNoBackend))
	_, err = device.Open("host?capacity=much")
	fmt.Println(errors.Is(err, device.ErrInvalid))
	// Output:
	// true
	// true
}
