package memcache

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDriverAllocsSucceeded: calls that the driver refuses do not count as DriverAllocs. Retried
// calls count as Retries, whether or not they succeed.
func TestDriverAllocsSucceeded(t *testing.T) {
	c, dev := newCache(t, Config{})
	_, scope := c.Scope(t.Context(), "short of memory")
	mustAlloc(t, c, 3*mib, dev.stream(1))
	dev.failures = 2
	_, err := c.Alloc(t.Context(), 40*mib, dev.stream(1))
	require.ErrorIs(t, err, ErrOutOfMemory)
	dev.failures = 1
	mustAlloc(t, c, 40*mib, dev.stream(1))
	scope.End()
	segments := int64(strings.Count(strings.Join(dev.calls, "\n"), "segment_alloc"))
	for _, w := range []Window{scope.Window(), {DriverAllocs: c.Stats().NumDeviceAlloc, Retries: c.Stats().NumAllocRetries, OutOfMemory: c.Stats().NumOOMs}} {
		require.Equal(t, []int64{segments, 2, 1}, []int64{w.DriverAllocs, w.Retries, w.OutOfMemory})
	}
	require.EqualValues(t, 2, segments)
}
