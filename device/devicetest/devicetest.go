package devicetest

import (
	"testing"

	"github.com/cistern-ml/cistern/device"
)

// Backend describes a backend to the suite. Open, Block, Fill and AddOne are required.
type Backend struct {
	// Open opens a device with at least 64 MiB of free memory. The suite closes it.
	Open func(t testing.TB) device.Device
	// Block queues an operation on s that runs until release is called. A test uses at most four at
	// a time.
	Block func(t testing.TB, s device.Stream) (release func())
	// Fill returns the launch of a kernel that sets the bytes bytes at p to value.
	Fill func(t testing.TB, d device.Device, p device.Ptr, bytes int64, value byte) *device.Launch
	// AddOne returns the launch of a kernel that adds one to each of the bytes bytes at p.
	AddOne func(t testing.TB, d device.Device, p device.Ptr, bytes int64) *device.Launch

	// Depth is the number of queued operations, including the running one, at which the next call
	// waits. With 0 the suite leaves the test of it out.
	Depth int
	// Fault queues work on s that fails. If it is nil the suite skips the tests of sticky errors.
	// Leave it nil if a failure would outlive the device.
	Fault func(t testing.TB, d device.Device, s device.Stream)
	// NoContents means that the device's memory has no contents, so the suite does not compare
	// them.
	NoContents bool
	// FreeWaits means that freeing memory waits for everything queued on the device. The suite then
	// does not test that a free waits for nothing else.
	FreeWaits bool
	// Shared means that other programs use the device's memory, too, so that MemInfo changes by
	// itself.
	Shared bool
}

// Run runs the suite as subtests of t. It fails at once if b lacks a required function.
func Run(t *testing.T, b Backend) {
	t.Helper()
	if name := b.missing(); name != "" {
		t.Fatalf("devicetest: Backend.%s is nil; the suite needs it", name)
	}
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Order", orderTests},
		{"Queue", queueTests},
		{"Event", eventTests},
		{"Reuse", reuseTests},
		{"Elapsed", elapsedTests},
		{"OnDone", onDoneTests},
		{"Copy", copyTests},
		{"Batch", batchTests},
		{"Copy2D", copy2DTests},
		{"Launch", launchTests},
		{"Memory", memoryTests},
		{"Pinned", pinnedTests},
		{"Virtual", virtualTests},
		{"Capture", capturing(captureTests)},
		{"Graph", capturing(graphTests)},
		{"Sticky", stickyTests},
		{"Close", closeTests},
		{"Overtaken", overtakenTests},
		{"Identity", identityTests},
		{"Concurrent", concurrentTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) { test.run(open(t, b)) })
			}
		})
	}
}

// missing returns the name of a required function that b lacks, or "".
func (b *Backend) missing() string {
	switch {
	case b.Open == nil:
		return "Open"
	case b.Block == nil:
		return "Block"
	case b.Fill == nil:
		return "Fill"
	case b.AddOne == nil:
		return "AddOne"
	}
	return ""
}

// test is one promise.
type test struct {
	name string
	run  func(*fixture)
}
