package memcache

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// shortLived opens and closes n streams that each leave a free block in each pool.
func shortLived(t *testing.T, c *Cache, dev *scripted, n int, each func(i int)) {
	for i := range n {
		s := dev.stream(uint64(1000 + i))
		small, large := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 3*mib, s)
		require.NoError(t, errors.Join(small.Free(), large.Free()))
		s.closed.Store(true)
		each(i)
	}
}

// TestExactDropsShardsOfClosedStreams: with Exact no segment passes to another stream. If the
// segments are flushed from time to time, the Go heap does not grow with the number of streams;
// otherwise it grows by some hundred bytes for each segment kept.
func TestExactDropsShardsOfClosedStreams(t *testing.T) {
	for name, config := range map[string]Config{"default": {Exact: true}, "expandable": {Exact: true, ExpandableSegments: true}} {
		t.Run(name, func(t *testing.T) {
			dev := newScripted(1 << 50)
			c, err := New(dev, config)
			require.NoError(t, err)
			n := max(scaled(2000), 500)
			var held int64
			shortLived(t, c, dev, n, func(i int) {
				if i%100 == 99 {
					require.NoError(t, c.EmptyCache(t.Context()))
					dev.calls = nil
				}
				if i == 199 {
					held = heap()
				}
			})
			require.Less(t, heap()-held, int64(128<<10))
			require.LessOrEqual(t, len(c.shards.list()), 101)
			require.Zero(t, c.MemoryReserved())

			dev.calls = nil
			held = heap()
			shortLived(t, c, dev, n, func(int) {})
			dev.calls = nil
			perSegment := (heap() - held) / int64(2*n)
			t.Logf("%d bytes of Go heap for each segment kept", perSegment)
			require.Less(t, perSegment, int64(1500)) // with what the device of the test holds
			require.LessOrEqual(t, len(c.shards.list()), 3)
			st := c.Stats()
			require.EqualValues(t, 2*2*n, st.Allocation.All.Allocated)
			require.EqualValues(t, 2*2*n, st.Misses, "nothing is passed on")
			require.NoError(t, c.check())
			require.NoError(t, c.EmptyCache(t.Context()))
			require.Zero(t, c.MemoryReserved())
			require.Empty(t, dev.reserved)
			require.NoError(t, c.check())
			runtime.KeepAlive(c)
		})
	}
}

// TestOrphansKeepTheirStream: snapshot, history and statistics continue as if the closed stream
// existed, and a free block of a segment in use stays in place until the last block is free.
func TestOrphansKeepTheirStream(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		c, dev := newCache(t, Config{Exact: true, ExpandableSegments: expandable})
		require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
		s, next := dev.stream(5), dev.stream(6)
		free, held := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 2000, s)
		require.NoError(t, free.Free())
		s.closed.Store(true)
		before := c.Snapshot().Segments
		stats := c.Stats()
		mine := mustAlloc(t, c, 500, next)
		require.NotEqual(t, free.Ptr(), mine.Ptr())
		require.Len(t, c.shards.list(), 2+1, "the stream's, the orphans', the next one's")
		require.Subset(t, c.Snapshot().Segments, before)
		require.NoError(t, held.Free())
		large := mustAlloc(t, c, 5*mib, next) // a miss
		require.Len(t, c.shards.list(), 2)
		require.ErrorIs(t, held.Free(), ErrFreed)
		require.ErrorIs(t, free.RecordStream(next), ErrFreed)
		at := slices.IndexFunc(c.Snapshot().Segments, func(g SegmentSnapshot) bool { return g.Stream == 5 })
		require.GreaterOrEqual(t, at, 0)
		g := c.Snapshot().Segments[at]
		require.Len(t, g.Blocks, 1)
		require.EqualValues(t, 2*mib, g.TotalSize)
		require.EqualValues(t, 2000, g.Blocks[0].RequestedSize, "of the last hand-out")
		require.Equal(t, stats.ReservedBytes.All.Current+22*mib, c.MemoryReserved())
		require.NoError(t, c.check())
		require.NoError(t, c.EmptyCache(t.Context()))
		history := c.History()
		j := slices.IndexFunc(history, func(e HistoryEntry) bool {
			return e.Action == ActionSegmentFree || e.Action == ActionSegmentUnmap && e.Size == 2*mib
		})
		require.GreaterOrEqual(t, j, 0)
		require.EqualValues(t, 5, history[j].Stream)

		last := mustAlloc(t, c, 500, dev.stream(math.MaxUint64)) // no ID is the orphans' own
		require.EqualValues(t, uint64(math.MaxUint64), last.StreamID())
		require.Len(t, c.shards.list(), 3)
		require.NoError(t, errors.Join(last.Free(), mine.Free(), large.Free(), c.check(), c.Close()))
	}
}

// TestBlocksOfClosedStreamsKeepLittle: a freed Block of a closed stream keeps a few records alive,
// and not all of the stream's shard.
func TestBlocksOfClosedStreamsKeepLittle(t *testing.T) {
	c, dev := newCache(t, Config{})
	const n = 300
	kept := make([]Block, 0, n)
	held := heap()
	for i := range uint64(n) {
		s := dev.stream(1 + i)
		small, large := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 5*mib, s)
		require.NoError(t, errors.Join(small.Free(), large.Free()))
		s.closed.Store(true)
		kept = append(kept, small)
	}
	mustAlloc(t, c, 1, dev.stream(n+1))
	dev.calls = nil
	require.Less(t, (heap()-held)/n, int64(12<<10), "bytes for each stream") // an index has tables of 10 KiB and more
	for _, b := range kept {
		require.ErrorIs(t, b.Free(), ErrFreed)
	}
	require.Len(t, c.shards.list(), 1)
}
