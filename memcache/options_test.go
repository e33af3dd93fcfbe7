package memcache

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFailuresLeaveNothingBehind fails driver calls at random, under different options: an
// allocation succeeds or returns out of memory, and every byte is returned at the end.
func TestFailuresLeaveNothingBehind(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}, {MaxSplitSizeMB: 20}, {ExpandableSegments: true}, {ExpandableSegments: true, MaxSplitSizeMB: 20, Exact: true}} {
		r := rand.New(rand.NewPCG(11, 12))
		c, dev := newCache(t, config)
		s, side := dev.stream(1), dev.stream(2)
		var live []Block
		failed := 0
		calls := 2000
		if testing.Short() {
			calls = 500
		}
		for range calls {
			dev.failures = max(0, r.IntN(12)-8)
			if n := len(live); n > 30 || n > 0 && r.IntN(3) == 0 {
				i := r.IntN(n)
				side.busy = r.IntN(2) == 0
				require.NoError(t, errors.Join(live[i].RecordStream(side), live[i].Free()))
				live = slices.Delete(live, i, i+1)
			} else if b, err := c.Alloc(t.Context(), 1+int64(math.Exp2(r.Float64()*26)), s); err == nil {
				live = append(live, b)
			} else {
				require.ErrorIs(t, err, ErrOutOfMemory)
				failed++
			}
			require.NoError(t, c.check())
		}
		require.Positive(t, failed)
		dev.failures = 0
		for _, b := range live {
			require.NoError(t, b.Free())
		}
		require.NoError(t, c.EmptyCache(t.Context()))
		require.Zero(t, c.MemoryReserved())
		require.Empty(t, dev.live)
		require.Empty(t, dev.mapped)
		require.NoError(t, c.Close())
	}
}

// TestUnmapThatFailsHalfWay: granules that the driver unmapped before a failure are gone, the
// others stay free memory, and both serve the next requests.
func TestUnmapThatFailsHalfWay(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	b := mustAlloc(t, c, 80*mib, s)
	require.NoError(t, b.Free())
	n, refused := 0, errors.New("refused")
	dev.gate = func(_ context.Context, call string) error {
		if n++; call == "Unmap" && n == 3 {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, c.EmptyCache(t.Context()), refused)
	require.NoError(t, c.check())
	require.EqualValues(t, 40*mib, c.MemoryReserved())
	require.EqualValues(t, 1, c.Stats().NumDeviceFree)
	require.Equal(t, b.Ptr()+40*mib, mustAlloc(t, c, 40*mib, s).Ptr(), "still mapped")
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 40*mib, s).Ptr(), "mapped again")
	require.NoError(t, c.check())
}
