package report_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/report"
)

// A program records its cache from the start, and writes the page on request.
func Example() {
	dev, err := device.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	if err := cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16, Stacks: memcache.StacksAlloc}); err != nil {
		log.Fatal(err)
	}
	stream, err := dev.NewStream(device.StreamOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	ctx := memcache.WithCategory(memcache.WithModule(context.Background(), "encoder.0"), memcache.CategoryParameter)
	block, err := cache.Alloc(ctx, 1<<20, stream)
	if err != nil {
		log.Fatal(err)
	}
	defer block.Free()

	page, err := report.FromCache(cache, nil, report.Options{Name: "the program"})
	if err != nil {
		log.Fatal(err)
	}
	var html bytes.Buffer // a file, or the answer of an http.Handler
	if err := report.Write(&html, page); err != nil {
		log.Fatal(err)
	}
	fmt.Println(html.Len() < 200_000)
	// Output: true
}

// The page of a request that failed begins with that request.
func ExampleOptions() {
	dev, err := device.Open("host?capacity=256MiB")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()

	_, err = cache.Alloc(context.Background(), 300<<20, stream)
	var oom *memcache.OutOfMemoryError
	if errors.As(err, &oom) {
		page, err := report.FromCache(cache, nil, report.Options{OutOfMemory: oom})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(report.Write(io.Discard, page))
	}
	// Output: <nil>
}
