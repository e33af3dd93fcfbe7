package null_test

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// A held stream acts as busy: an event recorded on it completes when the stream is released.
func ExampleStream_Hold() {
	dev, _ := null.New(null.Config{})
	defer dev.Close()
	stream, _ := dev.NewStream(device.StreamOptions{})
	event, _ := dev.NewEvent(device.EventOptions{})

	release, _ := stream.(*null.Stream).Hold()
	_ = stream.Record(event)
	fmt.Println(event.Query())
	release()
	fmt.Println(event.Query())
	// Output:
	// false <nil>
	// true <nil>
}

// A script chooses the addresses of a recording.
func ExampleDevice_SetScript() {
	dev, _ := null.New(null.Config{Capacity: 140 << 30})
	defer dev.Close()
	dev.SetScript(null.Script{Before: func(call *null.Call) {
		if call.Op == null.OpAlloc {
			call.Ptr = 0x7f0000000000
		}
	}})
	p, err := dev.Alloc(2 << 20)
	fmt.Printf("%#x %v\n", uint64(p), err)
	_ = dev.Free(p)
	// Output: 0x7f0000000000 <nil>
}
