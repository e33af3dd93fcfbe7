package memcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestStatisticsAfterClose: after Close the statistics count no memory in use, even after leaks,
// and count it as freed. The peaks stay.
func TestStatisticsAfterClose(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {MaxSplitSizeMB: 20}, {NoCaching: true}} {
		c, dev := newCache(t, config)
		s, other := dev.stream(1), dev.stream(2)
		ctx, scope := c.Scope(t.Context(), "leaks")
		mustAlloc(t, c, 1000, s)
		mustAlloc(t, c, 3*mib, other)
		require.NoError(t, mustAlloc(t, c, 5*mib, other).Free())
		leaked, err := c.Alloc(ctx, 64*mib, s)
		require.NoError(t, err)
		before := c.Stats()
		require.ErrorContains(t, c.Close(), "never freed: 3")
		after := c.Stats()
		peaks := before.quantities()
		for i, q := range after.quantities() {
			require.Zero(t, q.Current, "quantity %d: %+v", i, *q)
			require.Equal(t, q.Allocated, q.Freed, "quantity %d", i)
			require.Equal(t, peaks[i].Peak, q.Peak, "quantity %d", i)
			require.Equal(t, peaks[i].Allocated, q.Allocated, "quantity %d", i)
		}
		require.Zero(t, c.MemoryAllocated())
		require.Zero(t, c.AllocatedByCategory())
		require.ErrorIs(t, leaked.Free(), ErrClosed)
		require.Equal(t, after, c.Stats())
		require.EqualValues(t, 64*mib, scope.Own().Live)
		require.Zero(t, scope.Window().Allocated.Current)
		scope.End()
	}
}

// TestOversizeStatistics count blocks and segments of at least MaxSplitSizeMB.
func TestOversizeStatistics(t *testing.T) {
	c, dev := newCache(t, Config{MaxSplitSizeMB: 32})
	s := dev.stream(1)
	below, at, above := mustAlloc(t, c, 30*mib, s), mustAlloc(t, c, 32*mib, s), mustAlloc(t, c, 40*mib, s)
	st := c.Stats()
	require.Equal(t, Stat{Current: 2, Peak: 2, Allocated: 2}, st.OversizeSegments)
	require.Equal(t, Stat{Current: 2, Peak: 2, Allocated: 2}, st.OversizeAllocations)
	for _, b := range []Block{below, at, above} {
		require.NoError(t, b.Free())
	}
	require.Equal(t, Stat{Peak: 2, Allocated: 2, Freed: 2}, c.Stats().OversizeAllocations)
	require.NoError(t, c.EmptyCache(t.Context()))
	require.Equal(t, Stat{Peak: 2, Allocated: 2, Freed: 2}, c.Stats().OversizeSegments)
}

// TestRequestThatFindsTheCacheClosedWhileItGrows: the request changes nothing after Close, and
// blocks of closed streams still return ErrClosed.
func TestRequestThatFindsTheCacheClosedWhileItGrows(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, mustAlloc(t, c, 1000, other).Free())
	s.closed.Store(true)
	require.Error(t, c.Close())
	err := c.grower.allocGrowing(t.Context(), other, &request{Want: placement.Want{Requested: 1000, Bytes: 1024}, segmentBytes: sizes.SmallSegment})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, b.RecordStream(other), ErrClosed)
	require.ErrorIs(t, b.Free(), ErrClosed)
}
