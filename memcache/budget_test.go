package memcache

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

// TestPendingIsReclaimedUnderOOM: 100 blocks of 160 MB, each in use by a stream that is behind,
// pass through a device with memory for six of them.
func TestPendingIsReclaimedUnderOOM(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}, {ExpandableSegments: true}, {ExpandableSegments: true, Exact: true}} {
		c, dev := newCache(t, config)
		require.NoError(t, c.SetMemoryLimit(1000<<20))
		s, side := dev.stream(1), dev.stream(2)
		for range 100 {
			side.busy = true
			b := mustAlloc(t, c, 160_000_000, s)
			require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
		}
		st := c.Stats()
		require.Zero(t, st.NumOOMs)
		require.GreaterOrEqual(t, st.NumSyncAllStreams, int64(100/6))
		require.LessOrEqual(t, st.ReservedBytes.All.Peak, int64(1000<<20+20<<20))
		require.NoError(t, c.check())
	}
}

// TestFractionBoundary: under a fraction of one half, .499 of the device fit beside nothing, .5 beside nothing
// too, and .5 beside anything fail.
func TestFractionBoundary(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, c.SetMemoryFraction(0.5))
	total := float64(dev.total)
	b := mustAlloc(t, c, int64(0.499*total), s)
	require.NoError(t, b.Free())
	require.NoError(t, mustAlloc(t, c, int64(0.5*total), s).Free())
	_, err := c.Alloc(t.Context(), int64(0.5*total)+1, s)
	require.ErrorIs(t, err, ErrOutOfMemory)

	small := mustAlloc(t, c, 1, s)
	_, err = c.Alloc(t.Context(), int64(0.5*total), s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	b = mustAlloc(t, c, int64(0.49*total), s)
	require.NoError(t, errors.Join(small.Free(), b.Free(), c.SetMemoryFraction(0)))
	require.NoError(t, c.EmptyCache(t.Context()))
	_, err = c.Alloc(t.Context(), 1, s)
	require.ErrorIs(t, err, ErrOutOfMemory, "a fraction of 0 allows nothing")
	require.NoError(t, c.SetMemoryFraction(1))
	mustAlloc(t, c, int64(total), s)
}

// TestBudget: of 40 MB blocks three fit in 120 MB and a fourth does not. After they are freed one
// block of 120 MB fits, with any kinds of free segments.
func TestBudget(t *testing.T) {
	for name, config := range map[string]Config{
		"default":               {},
		"max split":             {MaxSplitSizeMB: 40},
		"expandable":            {ExpandableSegments: true},
		"expandable, max split": {ExpandableSegments: true, MaxSplitSizeMB: 40},
		"exact":                 {ExpandableSegments: true, MaxSplitSizeMB: 40, Exact: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, dev := newCache(t, config)
			require.NoError(t, c.SetMemoryFraction(120.0/1024))
			require.EqualValues(t, 120*mib, c.ledger.limit)
			s := dev.stream(1)
			var blocks []Block
			for range 3 {
				blocks = append(blocks, mustAlloc(t, c, 40*mib, s))
			}
			_, err := c.Alloc(t.Context(), 40*mib, s)
			require.ErrorIs(t, err, ErrOutOfMemory)
			for _, b := range blocks {
				require.NoError(t, b.Free())
			}
			require.NoError(t, mustAlloc(t, c, 120*mib, s).Free())
			require.NoError(t, c.check())
		})
	}
}

// TestCollectionInABudget: with garbage collection at half of 120 MB, 80 MB fit after 40 MB and 40 MB were
// freed, with each kind of segment.
func TestCollectionInABudget(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: expandable, GarbageCollectionThreshold: 0.5})
		require.NoError(t, c.SetMemoryFraction(120.0/1024))
		s := dev.stream(1)
		a, b := mustAlloc(t, c, 40*mib, s), mustAlloc(t, c, 40*mib, s)
		require.NoError(t, errors.Join(a.Free(), b.Free()))
		mustAlloc(t, c, 80*mib, s)
		st := c.Stats()
		require.LessOrEqual(t, st.ReservedBytes.All.Current, int64(120*mib))
		require.Zero(t, st.NumAllocRetries, "the collection makes room before the driver refuses")
		if expandable {
			require.Zero(t, st.NumDeviceFree, "what is free is used in place")
		} else {
			require.EqualValues(t, 2, st.NumDeviceFree, "both are equally old")
		}
		require.NoError(t, c.check())
	}
}

// TestCollectionStopsAtTheTarget: younger segments stay once the bytes above the threshold were
// returned.
func TestCollectionStopsAtTheTarget(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib, GarbageCollectionThreshold: 0.5})
	s := dev.stream(1)
	a, b, other := mustAlloc(t, c, 10*mib, s), mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, 30*mib, s)
	require.NoError(t, a.Free())
	for range 2 { // a grows older
		require.NoError(t, other.Free())
		other = mustAlloc(t, c, 30*mib, s)
	}
	require.NoError(t, b.Free())
	mustAlloc(t, c, 22*mib, s)
	st := c.Stats()
	require.EqualValues(t, 1, st.NumDeviceFree)
	require.EqualValues(t, (60-10+22)*mib, st.ReservedBytes.All.Current)
}

// TestStatisticsByExactDeltas: peaks, sums and their resets, call by call.
func TestStatisticsByExactDeltas(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, side := dev.stream(1), dev.stream(2)
	expect := func(what string, of func(Stats) Stat, current, peak, allocated, freed int64) {
		t.Helper()
		require.Equal(t, Stat{current, peak, allocated, freed}, of(c.Stats()), what)
	}
	bytes := func(s Stats) Stat { return s.AllocatedBytes.All }
	active := func(s Stats) Stat { return s.ActiveBytes.All }
	reserved := func(s Stats) Stat { return s.ReservedBytes.All }
	requested := func(s Stats) Stat { return s.RequestedBytes.SmallPool }

	a := mustAlloc(t, c, 256*4, s) // 256 floats
	expect("one block", bytes, 1024, 1024, 1024, 0)
	b := mustAlloc(t, c, 1025, s)
	expect("two blocks", bytes, 2560, 2560, 2560, 0)
	expect("two requests", requested, 2049, 2049, 2049, 0)
	require.NoError(t, a.Free())
	expect("one freed", bytes, 1536, 2560, 2560, 1024)
	big := mustAlloc(t, c, 3*mib, s)
	expect("a large one", bytes, 3*mib+1536, 3*mib+1536, 3*mib+2560, 1024)
	expect("the small pool", func(s Stats) Stat { return s.AllocatedBytes.SmallPool }, 1536, 2560, 2560, 1024)
	expect("segments", reserved, 22*mib, 22*mib, 22*mib, 0)

	side.busy = true
	require.NoError(t, errors.Join(big.RecordStream(side), big.Free()))
	expect("pending is not allocated", bytes, 1536, 3*mib+1536, 3*mib+2560, 3*mib+1024)
	expect("but active", active, 3*mib+1536, 3*mib+1536, 3*mib+2560, 1024)

	c.ResetPeakStats()
	expect("peaks start over", bytes, 1536, 1536, 3*mib+2560, 3*mib+1024)
	expect("from what is active", active, 3*mib+1536, 3*mib+1536, 3*mib+2560, 1024)
	c.ResetAccumulatedStats()
	expect("sums start over", bytes, 1536, 1536, 0, 0)
	expect("sums of segments", reserved, 22*mib, 22*mib, 0, 0)
	side.finish()
	require.NoError(t, mustAlloc(t, c, 512, s).Free()) // notices
	expect("after the resets", active, 1536, 3*mib+1536, 512, 3*mib+512)
	require.NoError(t, b.Free())
	require.NoError(t, c.EmptyCache(t.Context()))
	expect("all freed", bytes, 0, 2048, 512, 2048)
	expect("all returned", reserved, 0, 22*mib, 0, 22*mib)
	st := c.Stats()
	require.Equal(t, []int64{0, 2, 1, 1, 0}, []int64{st.NumDeviceAlloc, st.NumDeviceFree, st.NumSyncAllStreams, st.Hits, st.Misses})
	require.NoError(t, c.check())
}
