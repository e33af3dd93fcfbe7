package diff_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/diff"
	"github.com/cistern-ml/cistern/trace/record"
)

// Example records two runs and compares their peaks.
func Example() {
	run := func(bytesOfInput int64) *bytes.Buffer {
		dev, _ := host.New(host.Config{Capacity: 64 << 20})
		defer dev.Close()
		cache, _ := memcache.New(dev, memcache.Config{})
		defer cache.Close()
		stream, _ := dev.NewStream(device.StreamOptions{})
		var file bytes.Buffer
		recorder, _ := record.Start(&file, cache, record.Options{})
		ctx := memcache.WithCategory(context.Background(), memcache.CategoryInput)
		block, _ := cache.Alloc(ctx, bytesOfInput, stream)
		_ = block.Free()
		_ = recorder.Close()
		return &file
	}
	diffs, err := diff.Read(diff.Options{}, diff.File{Name: "before", Reader: run(1 << 20)}, diff.File{Name: "after", Reader: run(3 << 20)})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range diffs { // one for each device or rank
		for _, row := range slices.Concat(d.Peaks, d.Dimensions[0].Rows) {
			fmt.Println(row.Name, row.After.Bytes-row.Before.Bytes)
		}
	}
	fmt.Println(diff.Write(io.Discard, "before and after", diffs...))
	// Output:
	// peak allocated 2097152
	// peak reserved 18874368
	// input 2097152
	// <nil>
}
