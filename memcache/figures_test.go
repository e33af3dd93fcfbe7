package memcache

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestPendingFigures: an out-of-memory error reports pending blocks, free ones and private pools.
func TestPendingFigures(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
	s, other, side := dev.stream(1), dev.stream(2), dev.stream(3)
	_, ctx := newPool(t, c, PoolOptions{})
	require.NoError(t, allocIn(t, ctx, c, 12*mib, s).Free())
	keep := mustAlloc(t, c, 3*mib, s)  // leaves 17 MiB of a segment
	mustAlloc(t, c, 18*mib-512, other) // another stream's
	x, y := mustAlloc(t, c, 5*mib, s), mustAlloc(t, c, 2*mib, s)
	require.NoError(t, x.Free()) // a hole of 5 MiB, and 10 at the end
	b := mustAlloc(t, c, 30*mib, s)
	require.NoError(t, b.RecordStream(side))
	h := newRecorder(dev, 4)
	require.NoError(t, b.RecordStream(h))
	free := async(b.Free)
	<-h.entered // it is pending until the stream takes the event, even during a flush
	_, err := c.Alloc(t.Context(), 40*mib, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, OutOfMemoryError{Requested: 40 * mib, Segment: 40 * mib, Device: "scripted", Total: 1 << 30, Free: 1<<30 - 80*mib,
		Limit: 100 * mib, Allocated: 3*mib + 18*mib + 2*mib, Pending: 30 * mib, Reserved: 80 * mib, Largest: 10 * mib, OtherPools: 12 * mib,
		Advice: "memory_limit:125829120 (120.00 MiB) would have served it"}, *oom)
	require.ErrorContains(t, err, "the cache reserves 80.00 MiB: 23.00 MiB allocated, 30.00 MiB freed but in use by a recorded stream, 27.00 MiB free "+
		"(15.00 MiB in pieces of at most 10.00 MiB, 12.00 MiB of other pools)")
	close(h.leave)
	require.NoError(t, errors.Join(free(), keep.Free(), y.Free()))
	_, err = c.Alloc(ctx, 101*mib, other)
	require.ErrorAs(t, err, &oom)
	require.Zero(t, oom.Largest, "the pool has nothing of this stream")
}

// TestSummaryUnits: a cell's unit is the first in which its row's reference is below the threshold.
func TestSummaryUnits(t *testing.T) {
	for _, x := range []struct {
		v    int64
		cell func(v, reference int64) string
		want string
	}{
		{0, sizeCell, "     0 B  "}, {768<<10 - 1, sizeCell, "786431 B  "}, {768 << 10, sizeCell, "   768 KiB"}, {768<<20 - 1, sizeCell, "786431 KiB"},
		{768 << 20, sizeCell, "   768 MiB"}, {768 << 30, sizeCell, "   768 GiB"}, {768 << 40, sizeCell, "   768 TiB"},
		{768 << 50, sizeCell, "   768 PiB"}, {1 << 62, sizeCell, "  4096 PiB"},
		{749_999, countCell, " 749999   "}, {750_000, countCell, "    750 K "}, {750_000_000, countCell, "    750 M "}, {750_000_000_000, countCell, " 750000 M "},
	} {
		require.Equal(t, x.want, x.cell(x.v, x.v))
	}
	require.Equal(t, "     1 KiB", sizeCell(2000, 1<<20), "the reference's unit")
	for bytes, want := range map[int64]string{
		0: "0 bytes", 1024: "1024 bytes", 1025: "1.00 KiB", 1 << 20: "1024.00 KiB", 1<<20 + 1: "1.00 MiB", 1 << 30: "1024.00 MiB", 1<<30 + 1: "1.00 GiB", 3 << 40: "3072.00 GiB",
	} {
		require.Equal(t, want, sizes.Format(bytes))
	}
}

// TestSerialsAreUnique on two streams that use up their leased numbers.
func TestSerialsAreUnique(t *testing.T) {
	c, dev := newCache(t, Config{})
	streams := []*scriptedStream{dev.stream(1), dev.stream(2)}
	seen := map[uint64]bool{}
	for i := range 2*leaseSize + 10 {
		b, err := c.Alloc(context.Background(), 1, streams[i%2])
		if err != nil || b.Serial() == 0 || seen[b.Serial()] || b.Free() != nil {
			t.Fatalf("block %d has the serial %d: %v", i, b.Serial(), err)
		}
		seen[b.Serial()] = true
	}
}

// TestAges: a segment ages with each search of its pool's kind in the default pool, while collection is armed.
func TestAges(t *testing.T) {
	c, dev := newCache(t, Config{GarbageCollectionThreshold: 0.5})
	s := dev.stream(1)
	_, ctx := newPool(t, c, PoolOptions{})
	search := func() (small, large int64) {
		before := [2]int64{c.shards.gcClock[placement.Small].Load(), c.shards.gcClock[placement.Large].Load()}
		require.NoError(t, mustAlloc(t, c, 1000, s).Free())
		require.NoError(t, mustAlloc(t, c, 3*mib, s).Free())
		require.NoError(t, mustAlloc(t, c, 3*mib, s).Free())
		require.NoError(t, allocIn(t, ctx, c, 3*mib, s).Free())
		return c.shards.gcClock[placement.Small].Load() - before[placement.Small], c.shards.gcClock[placement.Large].Load() - before[placement.Large]
	}
	check := func(wantSmall, wantLarge int64) {
		t.Helper()
		small, large := search()
		require.Equal(t, []int64{wantSmall, wantLarge}, []int64{small, large})
	}
	require.False(t, c.shards.gcArmed.Load())
	check(0, 0)
	for range 2 {
		require.NoError(t, c.SetMemoryFraction(0.5))
		require.True(t, c.shards.gcArmed.Load())
		check(1, 2)
	}
	side := dev.stream(2)
	side.busy = true
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
	for range 2 {
		require.NoError(t, c.SetMemoryFraction(1))
		require.EqualValues(t, 1, pendingEvents(c))
		check(0, 0) // also while frees are pending
	}
}

// TestClosedCacheServesNothing, including memory that was free in it.
func TestClosedCacheServesNothing(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	pool, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, errors.Join(mustAlloc(t, c, 1000, s).Free(), allocIn(t, ctx, c, 1000, s).Free()))
	require.NoError(t, c.Close())
	calls := len(dev.calls)
	for _, ctx := range []context.Context{t.Context(), ctx} {
		_, err := c.Alloc(ctx, 1000, s)
		require.ErrorIs(t, err, ErrClosed)
		_, err = c.Alloc(ctx, 100*mib, dev.stream(2))
		require.ErrorIs(t, err, ErrClosed)
	}
	require.ErrorIs(t, c.EmptyCache(t.Context()), ErrClosed)
	_, err := c.NewPool(PoolOptions{})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, pool.Release())
	require.ErrorIs(t, pool.EmptyCache(t.Context()), ErrClosed)
	require.Empty(t, c.grower.lending.all())
	for _, s := range c.shards.list() {
		require.Zero(t, s.arena.Len())
		require.Nil(t, s.arena.Find(&placement.Want{Bytes: 512}))
	}
	require.Len(t, dev.calls, calls)
	require.Zero(t, c.Stats().NumSyncAllStreams)
}

// TestRefusedRequests change nothing, and make no driver call.
func TestRefusedRequests(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := c.Stats()
	refused := func(ctx context.Context, bytes int64, stream device.Stream, want error) {
		t.Helper()
		_, err := c.Alloc(ctx, bytes, stream)
		require.ErrorIs(t, err, want)
	}
	var none context.Context
	refused(none, 1, s, ErrInvalid)
	refused(ended, 1, s, context.Canceled)
	refused(t.Context(), -1, s, ErrInvalid)
	refused(t.Context(), 1, nil, ErrInvalid)
	refused(t.Context(), 1, newScripted(1).stream(1), ErrInvalid)
	refused(t.Context(), 1<<60, s, ErrOutOfMemory)
	require.Equal(t, before, c.Stats())
	require.Empty(t, c.shards.list())
	require.NoError(t, c.EmptyCache(t.Context()))
	require.ErrorIs(t, c.EmptyCache(none), ErrInvalid)
	require.ErrorIs(t, c.EmptyCache(ended), context.Canceled)
	require.EqualValues(t, 1, c.Stats().NumSyncAllStreams)
	require.ErrorIs(t, mustAlloc(t, c, 1, s).RecordStream(nil), ErrInvalid)
	_, err := New(nil, Config{})
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: maxHistory, Stacks: StacksAll}))
	require.NoError(t, c.RecordHistory(HistoryOptions{}))
	mustAlloc(t, c, 1, s) // nothing is recorded
	require.Nil(t, c.History())
}

// TestPrivatePoolsDontBorrow: a pool lends only to requests of the default pool.
func TestPrivatePoolsDontBorrow(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 20 * mib})
	s := dev.stream(1)
	_, lends := newPool(t, c, PoolOptions{UseOnOOM: true})
	_, mine := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, allocIn(t, lends, c, 20*mib, s).Free())
	_, err := c.Alloc(mine, 20*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	mustAlloc(t, c, 20*mib, s)
}

// TestOversizeRounding: a block of at least MaxSplitSizeMB serves requests that leave less than
// MaxNonSplitRoundingMB of it.
func TestOversizeRounding(t *testing.T) {
	c, dev := newCache(t, Config{MaxSplitSizeMB: 20, MaxNonSplitRoundingMB: 30})
	s := dev.stream(1)
	b := mustAlloc(t, c, 60*mib, s)
	require.NoError(t, b.Free())
	require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 30*mib, s).Ptr())
	again := mustAlloc(t, c, 30*mib+1, s)
	require.Equal(t, b.Ptr(), again.Ptr())
	require.EqualValues(t, 60*mib, again.Size())
	require.NoError(t, again.Free())
	require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 20*mib-512, s).Ptr(), "below MaxSplitSizeMB it is not for this")
	require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 20*mib, s).Ptr(), "and from there on it would waste 40 MiB")
	again = mustAlloc(t, c, 31*mib, s)
	require.Equal(t, b.Ptr(), again.Ptr())
	d := mustAlloc(t, c, 44*mib, s)
	require.NoError(t, d.Free())
	again = mustAlloc(t, c, 20*mib, s)
	require.Equal(t, d.Ptr(), again.Ptr())
	require.EqualValues(t, 44*mib, again.Size(), "from MaxSplitSizeMB on nothing is split off")
}

// TestLargestFree: the largest free block of any stream counts, and none of a private pool.
func TestLargestFree(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	pool, ctx := newPool(t, c, PoolOptions{})
	require.NoError(t, allocIn(t, ctx, c, 40*mib, s).Free())
	largest := func() [2]int64 {
		small, large := c.LargestFree()
		return [2]int64{small, large}
	}
	require.Equal(t, [2]int64{}, largest())
	x, y := mustAlloc(t, c, 512, s), mustAlloc(t, c, 1024, other)
	require.Equal(t, [2]int64{2*mib - 512, 0}, largest())
	require.NoError(t, errors.Join(mustAlloc(t, c, 14*mib, s).Free(), mustAlloc(t, c, 12*mib, other).Free()))
	require.Equal(t, [2]int64{2*mib - 512, 14 * mib}, largest())
	require.NoError(t, errors.Join(x.Free(), y.Free(), pool.Release()))
	require.Equal(t, [2]int64{2 * mib, 14 * mib}, largest())
}
