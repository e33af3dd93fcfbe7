package memcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHugeRequests are out of memory, beside small and large free blocks, also where int has 32
// bits.
func TestHugeRequests(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.5})
	s := dev.stream(1)
	small, large := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 30*mib, s)
	require.NoError(t, small.Free())
	require.NoError(t, large.Free())
	for shift := 31; shift < 63; shift++ {
		for _, bytes := range []int64{1<<shift - 1, 1 << shift, 1<<shift + 1} {
			_, err := c.Alloc(t.Context(), bytes, s)
			require.ErrorIs(t, err, ErrOutOfMemory, "%d bytes", bytes)
		}
	}
	require.NoError(t, c.check())
}
