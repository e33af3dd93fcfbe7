package devicetest_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/device/null"
)

// A backend's test file: it opens the device, keeps a stream busy, and has two kernels. This
// backend is device/null, which has no memory, so the kernels do nothing.
func ExampleRun() {
	nothing := func(p device.Ptr, bytes int64) *device.Launch {
		r := []device.Range{{Ptr: p, Bytes: bytes}}
		return &device.Launch{Name: "nothing", Func: func() {}, Reads: r, Writes: r}
	}
	passed := run(func(t *testing.T) {
		devicetest.Run(t, devicetest.Backend{
			Open: func(t testing.TB) device.Device {
				dev, err := null.New(null.Config{Capacity: 64 << 20})
				if err != nil {
					t.Fatal(err)
				}
				return dev
			},
			Block: func(t testing.TB, s device.Stream) (release func()) {
				release, err := s.(*null.Stream).Hold()
				if err != nil {
					t.Fatal(err)
				}
				return release
			},
			Fill: func(_ testing.TB, _ device.Device, p device.Ptr, bytes int64, _ byte) *device.Launch {
				return nothing(p, bytes)
			},
			AddOne: func(_ testing.TB, _ device.Device, p device.Ptr, bytes int64) *device.Launch {
				return nothing(p, bytes)
			},
			NoContents: true,
		})
	})
	fmt.Println(passed)
	// Output: true
}

// run stands for go test, and keeps the output of go test -v out of the example's output.
func run(test func(*testing.T)) bool {
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		defer null.Close()
		os.Stdout = null
	}
	return testing.RunTests(func(_, name string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "TestConformance", F: test}})
}
