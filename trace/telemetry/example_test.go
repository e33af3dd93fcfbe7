package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/telemetry"
)

// Example prints the spans of a program to a buffer. A real program says "otlp", and the
// environment names the collector.
func Example() {
	var out bytes.Buffer
	sdk, err := telemetry.New(context.Background(), telemetry.Config{Exporter: "stdout", Output: &out, Service: "my-training"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, span := sdk.Start(context.Background(), "training")
	dev, _ := host.New(host.Config{Capacity: 64 << 20})
	defer dev.Close()
	cache, _ := memcache.New(dev, memcache.Config{Observer: sdk.Tracer().Memory()})
	defer cache.Close()
	stream, _ := dev.NewStream(device.StreamOptions{})
	block, _ := cache.Alloc(ctx, 1<<20, stream)
	fmt.Println(block.Free())

	sdk.CloseTracer(sdk.Tracer()) // while the cache is open
	sdk.Shutdown(span, nil)
	fmt.Println(strings.Contains(out.String(), `"Name":"cistern.memory.driver_alloc"`))
	// Output:
	// <nil>
	// true
}
