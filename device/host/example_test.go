package host_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// A kernel runs on one stream, and another stream copies its result back. The event orders the two.
// Without it, this example would be a data race, which go test -race reports.
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

// Work on two streams, captured once and replayed.
func Example_graph() {
	dev, err := host.New(host.Config{Capacity: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, _ := dev.NewStream(device.StreamOptions{})
	b, _ := dev.NewStream(device.StreamOptions{})
	e, _ := dev.NewEvent(device.EventOptions{})
	x, _ := dev.Alloc(8)
	in, _ := dev.AllocPinned(8)
	out, _ := dev.AllocPinned(8)

	capturer := a.(device.GraphCapturer)
	_ = capturer.BeginCapture()
	_ = a.CopyH2D(x, in)
	_ = a.Record(e)
	_ = b.Wait(e) // b joins the capture
	_ = b.Memset(x, 7, 2)
	_ = b.Record(e)
	_ = a.Memset(x+6, 9, 2)
	_ = a.Wait(e) // and a waits for b's work
	_ = a.CopyD2H(out, x)
	fmt.Println(errors.Is(a.Synchronize(context.Background()), device.ErrCapturing))
	graph, _ := capturer.EndCapture()

	for i := range byte(2) {
		in[3] = i
		_ = graph.Replay(a)
		_ = a.Synchronize(context.Background())
		fmt.Println(graph.Nodes(), out)
	}
	fmt.Println(dev.Free(x))

	_ = graph.Close()
	_ = dev.FreePinned(in)
	_ = dev.FreePinned(out)
	_ = dev.Free(x)
	fmt.Println(dev.Close())
	// Output:
	// true
	// 4 [7 7 0 0 0 0 9 9]
	// 4 [7 7 0 1 0 0 9 9]
	// device: Free on host: invalid argument (code 1): a graph or a capture uses the memory; close the graph first
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
