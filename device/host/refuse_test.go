package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCallsOvertakenByClose: a call that began before Close and finds its memory gone returns that
// the device is closed.
func TestCallsOvertakenByClose(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	require.ErrorContains(t, d.Close(), "1 allocations")
	for _, onHost := range []bool{false, true} {
		require.ErrorIs(t, d.name("Memset", new(uses), uintptr(p), 64, true, onHost), device.ErrClosed)
	}
	require.ErrorIs(t, d.refuse("Unmap", self.Invalid("Unmap", 0, "why")), device.ErrClosed)
}

// TestTheTableClosesDuringACall: if the device closes during an allocation, the call returns no
// memory and charges none.
func TestTheTableClosesDuringACall(t *testing.T) {
	d, err := New(Config{Capacity: 8 * granularity})
	require.NoError(t, err)
	d.mem.close()
	_, err = d.Alloc(64)
	require.ErrorIs(t, err, device.ErrClosed)
	_, err = d.AllocPinned(64)
	require.ErrorIs(t, err, device.ErrClosed)
	_, err = d.Reserve(granularity)
	require.ErrorIs(t, err, device.ErrClosed)
	require.Zero(t, d.mem.used)
	require.Zero(t, d.mem.pinnedBytes)
	require.NoError(t, d.Close())
}
