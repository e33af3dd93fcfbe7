package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCallsOvertakenByClose: a call that began before Close and finds its memory gone says why.
func TestCallsOvertakenByClose(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	require.ErrorContains(t, d.Close(), "1 allocations")
	for _, onHost := range []bool{false, true} {
		require.ErrorIs(t, d.name("Memset", new(uses), uintptr(p), 64, true, onHost), device.ErrClosed)
	}
	require.ErrorIs(t, d.refuse("Unmap", invalid("Unmap", 0, "why")), device.ErrClosed)
}
