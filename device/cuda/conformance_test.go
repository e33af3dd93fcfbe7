//go:build cuda

package cuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// faulty is set in separate processes, because a sticky error outlives the device.
const faulty = "CISTERN_FAULTY_GPU"

func TestConformance(t *testing.T) {
	require.NoError(t, open(t).Close()) // one skip without a GPU
	backend := devicetest.Backend{
		Open:  func(t testing.TB) device.Device { return open(t) },
		Block: func(t testing.TB, s device.Stream) func() { return block(t, s) },
		Fill: func(t testing.TB, d device.Device, p device.Ptr, bytes int64, value byte) *device.Launch {
			return overBytes(t, d, "fill", p, bytes, uint64(value))
		},
		AddOne: func(t testing.TB, d device.Device, p device.Ptr, bytes int64) *device.Launch {
			return overBytes(t, d, "addOne", p, bytes)
		},
		Shared:    true,
		FreeWaits: true,
	}
	if os.Getenv(faulty) != "" {
		backend.Fault = func(t testing.TB, d device.Device, s device.Stream) { fault(t, d, s) }
	}
	devicetest.Run(t, backend)
}

func fault(t testing.TB, d device.Device, s device.Stream) {
	require.NoError(t, s.Launch(&device.Launch{Name: "fault", Kernel: kernel(t, d, "fault"), Grid: one, Block: one,
		Args: []uint64{0}}))
}

// TestSticky runs each of the suite's tests of sticky errors in a separate process.
func TestSticky(t *testing.T) {
	require.NoError(t, open(t).Close())
	for _, name := range []string{"failed_work_makes_every_later_call_fail", "later_work_fails_with_the_error",
		"a_call_that_waits_returns_it", "a_fault_inside_of_a_replay", "Close_works,_and_returns_it"} {
		t.Run(name, func(t *testing.T) {
			again(t, "TestConformance/Sticky/"+name+"$", "--- PASS: TestConformance/Sticky/"+name)
		})
	}
	t.Run("a lost GPU can't be opened", func(t *testing.T) { again(t, "TestLost$", "--- PASS: TestLost") })
}

// again runs a test in a process in which GPUs may fail.
func again(t *testing.T, name, passed string) {
	out, err := child.Test(name, faulty+"=1")
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, passed)
}

func TestLost(t *testing.T) {
	if os.Getenv(faulty) == "" {
		t.Skip("TestSticky runs it")
	}
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	fault(t, d, s)
	require.ErrorIs(t, d.Close(), device.ErrSticky)
	_, err = device.Open("cuda:0")
	require.ErrorIs(t, err, device.ErrSticky)
	require.ErrorContains(t, err, "start it again")
}
