package cisterntest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// Named is the device that CISTERN_TEST_DEVICE names, such as "cuda:0", for tests that can use any; or "".
func Named() string { return os.Getenv("CISTERN_TEST_DEVICE") }

// Open opens the device that CISTERN_TEST_DEVICE names, which has the size that it has, or a host device with so many
// bytes. The caller closes it.
func Open(t testing.TB, capacity int64) device.Device {
	t.Helper()
	if Named() == "" {
		return Host(t, capacity)
	}
	dev, err := device.Open(Named())
	require.NoError(t, err)
	return dev
}

// Host makes a host device with so many bytes, or with the default of 0. The caller closes it.
func Host(t testing.TB, capacity int64) *host.Device {
	t.Helper()
	dev, err := host.New(host.Config{Capacity: capacity})
	require.NoError(t, err)
	return dev
}

// OnlyHost skips a test of what only the host device can do, such as faults on demand.
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
