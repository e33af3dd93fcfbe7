package cisterntest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

// Named returns the device in CISTERN_TEST_DEVICE, such as "cuda:0", for tests that can use any, or
// "".
func Named() string { return os.Getenv("CISTERN_TEST_DEVICE") }

// Open opens the device in CISTERN_TEST_DEVICE, which has a size of its own, or else a host device
// with so many bytes. The caller closes it.
func Open(t testing.TB, capacity int64) device.Device {
	t.Helper()
	if Named() == "" {
		return Host(t, capacity)
	}
	dev, err := device.Open(Named())
	require.NoError(t, err)
	leaktest.Device(t, dev)
	return dev
}

// ranks returns the ranks' devices in CISTERN_TEST_RANKS, such as "cuda:0,cuda:1".
func ranks() []string {
	names := os.Getenv("CISTERN_TEST_RANKS")
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}

// Ranks returns the number of ranks of a test, at most most: the number of devices in
// CISTERN_TEST_RANKS, or any number without it.
func Ranks(most int) int {
	if names := ranks(); names != nil {
		return min(most, len(names))
	}
	return most
}

// OpenRank opens a rank's device in CISTERN_TEST_RANKS, which has a size of its own, or else a host
// device with so many bytes. The caller closes it.
func OpenRank(t testing.TB, rank int, capacity int64) device.Device {
	t.Helper()
	names := ranks()
	if names == nil {
		return Host(t, capacity)
	}
	if rank >= len(names) {
		t.Skipf("needs at least %d ranks; CISTERN_TEST_RANKS names devices for %d", rank+1, len(names))
	}
	dev, err := device.Open(names[rank])
	require.NoError(t, err)
	leaktest.Device(t, dev)
	return dev
}

// Host makes a host device with so many bytes; 0 is the default size. The caller closes it.
func Host(t testing.TB, capacity int64) *host.Device {
	t.Helper()
	dev, err := host.New(host.Config{Capacity: capacity})
	require.NoError(t, err)
	leaktest.Device(t, dev)
	return dev
}

// OnlyHost skips a test that needs the host device, for example its faults on demand.
func OnlyHost(t testing.TB, dev device.Device, why string) *host.Device {
	t.Helper()
	h, ok := dev.(*host.Device)
	if !ok {
		t.Skip("only on the host device: " + why)
	}
	return h
}

// Stream makes a stream. The caller closes it.
func Stream(t testing.TB, dev device.Device) device.Stream {
	t.Helper()
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	return s
}
