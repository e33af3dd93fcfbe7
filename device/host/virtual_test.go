package host

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReserveMakesOneSlice: a second one, for the alignment, would be garbage as large as the device.
func TestReserveMakesOneSlice(t *testing.T) {
	const size = 256 << 20
	d, err := New(Config{Capacity: size})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p, err := d.Reserve(size)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size+2*granularity))
	require.NoError(t, d.Unreserve(p))
	require.NoError(t, d.Close())
}
