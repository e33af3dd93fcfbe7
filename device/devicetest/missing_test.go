package devicetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestMissingFunctions: Run names a missing function before it runs a test.
func TestMissingFunctions(t *testing.T) {
	b := Backend{}
	require.Equal(t, "Open", b.missing())
	b.Open = func(testing.TB) device.Device { return nil }
	require.Equal(t, "Block", b.missing())
	b.Block = func(testing.TB, device.Stream) func() { return nil }
	require.Equal(t, "Fill", b.missing())
	b.Fill = func(testing.TB, device.Device, device.Ptr, int64, byte) *device.Launch { return nil }
	require.Equal(t, "AddOne", b.missing())
	b.AddOne = func(testing.TB, device.Device, device.Ptr, int64) *device.Launch { return nil }
	require.Empty(t, b.missing())
}
