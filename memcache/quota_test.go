package memcache

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestRequestedPeakOfAScope: a block replaces an equally large one with fewer requested bytes. That
// raises the requested bytes and nothing else.
func TestRequestedPeakOfAScope(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, mustAlloc(t, c, 1024, s).Free()) // the cache's own peaks are not raised again
	less := mustAlloc(t, c, 999, s)
	_, scope := c.Scope(t.Context(), "requested")
	require.NoError(t, less.Free())
	b := mustAlloc(t, c, 1000, s)
	require.Equal(t, Level{Start: 999, Current: 1000, Peak: 1000}, scope.Window().Requested)
	require.Equal(t, Level{Start: 1024, Current: 1024, Peak: 1024}, scope.Window().Allocated)
	require.NoError(t, c.check())
	require.NoError(t, b.Free())
	scope.End()
}

// TestAllocatedPeakOfAScope: the reverse.
func TestAllocatedPeakOfAScope(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	// the cache's own peaks are not raised again
	freeAll(t, []Block{mustAlloc(t, c, 4096, s), mustAlloc(t, c, 4096, s)})
	b := mustAlloc(t, c, 1024, s)
	_, scope := c.Scope(t.Context(), "allocated")
	require.NoError(t, b.Free())
	mustAlloc(t, c, 1023, s)
	mustAlloc(t, c, 1, s)
	require.Equal(t, Level{Start: 1024, Current: 1536, Peak: 1536}, scope.Window().Allocated)
	require.Equal(t, Level{Start: 1024, Current: 1024, Peak: 1024}, scope.Window().Requested)
	require.NoError(t, c.check())
	scope.End()
}

// TestQuotasMoveWithoutTheSharedLock: when usage moves from one stream to another, below every
// peak, the quotas that the other stream no longer needs move with it, without the shared lock. The
// test holds that lock, so a stream that needed it would wait for ever.
func TestQuotasMoveWithoutTheSharedLock(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks after each call take the shared lock")
	}
	c, dev := newCache(t, Config{})
	a, b := dev.stream(1), dev.stream(2)
	// Both streams have free blocks of both pools, which are parts of segments.
	for _, s := range []*scriptedStream{a, b} {
		mustAlloc(t, c, 512, s)
		mustAlloc(t, c, 3*mib, s)
	}
	_, scope := c.Scope(t.Context(), "moves")
	sizes := []int64{700, 300_000, 5 * mib}
	var blocks []Block
	for _, bytes := range sizes {
		blocks = append(blocks, mustAlloc(t, c, bytes, a))
	}
	freeAll(t, blocks)
	c.shards.mu.Lock()
	done := make(chan error, 1)
	go func() {
		for range 3 {
			for _, s := range []*scriptedStream{b, a} {
				var blocks []Block
				for _, bytes := range sizes {
					block, err := c.Alloc(context.Background(), bytes, s)
					if err != nil {
						done <- err
						return
					}
					blocks = append(blocks, block)
				}
				for _, block := range blocks {
					if err := block.Free(); err != nil {
						done <- err
						return
					}
				}
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Error("a stream waits for the lock that all share")
	}
	c.shards.mu.Unlock()
	require.NoError(t, c.check())
	scope.End()
}

// TestWindowsOfStreamsThatClose: the quotas of a closing stream, in the peaks and in those of
// windows, pass to another one.
func TestWindowsOfStreamsThatClose(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c, dev := newCache(t, Config{Exact: exact})
		_, scope := c.Scope(t.Context(), "streams")
		for i := range 20 {
			s := dev.stream(uint64(1 + i))
			require.NoError(t, mustAlloc(t, c, 100_000, s).Free())
			require.NoError(t, mustAlloc(t, c, 5*mib, s).Free())
			s.closed.Store(true)
			require.NoError(t, c.check(), "after stream %d", i)
			require.EqualValues(t, 5*mib, c.MaxMemoryAllocated())
			require.EqualValues(t, 5*mib, scope.Window().Allocated.Peak)
			require.EqualValues(t, 5*mib, scope.Window().Requested.Peak)
		}
		scope.End()
	}
}

// TestCountsOfStreamsThatClose: a stream's counts stay in the statistics after its shard is
// retired, until a reset.
func TestCountsOfStreamsThatClose(t *testing.T) {
	c, dev := newCache(t, Config{})
	gone, s := dev.stream(1), dev.stream(2)
	for range 10 {
		a, b := mustAlloc(t, c, 1000, gone), mustAlloc(t, c, 1000, gone)
		freeAll(t, []Block{a, b})
	}
	before := c.Stats()
	require.EqualValues(t, 19, before.Hits)
	require.EqualValues(t, 1, before.Misses)
	require.EqualValues(t, 20, before.Splits)
	require.EqualValues(t, 20, before.Merges)
	gone.closed.Store(true)
	mustAlloc(t, c, 30*mib, s) // a miss: the shard goes
	require.Len(t, c.shards.list(), 1)
	st := c.Stats().Since(before)
	require.Equal(t, []int64{0, 1, 0, 0}, []int64{st.Hits, st.Misses, st.Splits, st.Merges})
	require.EqualValues(t, 1, st.Allocation.All.Allocated)
	require.Zero(t, st.Allocation.All.Freed)
	require.EqualValues(t, 21, c.Stats().Allocation.All.Allocated)
	require.EqualValues(t, 20, c.Stats().Allocation.SmallPool.Freed)

	c.ResetAccumulatedStats()
	now := c.Stats()
	for i, q := range now.quantities() {
		require.Zero(t, q.Allocated, "quantity %d", i)
		require.Zero(t, q.Freed, "quantity %d", i)
	}
	for i, n := range now.counts() {
		require.Zero(t, *n, "count %d", i)
	}
	require.EqualValues(t, 21, now.Since(Stats{}).Allocation.All.Allocated)
}

// TestFailedRequestsAreMisses: each is one miss, however often it was retried.
func TestFailedRequestsAreMisses(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {NoCaching: true}} {
		config.MemoryLimit = 64 * mib
		c, dev := newCache(t, config)
		s := dev.stream(1)
		c.OnPressure(func(context.Context, int64) int64 { return c.ledger.limit * 10 })
		mustAlloc(t, c, 1000, s)
		for range 3 {
			_, err := c.Alloc(t.Context(), 80*mib, s)
			require.ErrorIs(t, err, ErrOutOfMemory)
		}
		st := c.Stats()
		require.EqualValues(t, 3, st.NumOOMs)
		require.EqualValues(t, 4, st.Misses)
		require.Zero(t, st.Hits)
	}
}

// TestReservedPeakOfAScope: the most bytes held from the driver since the window opened.
func TestReservedPeakOfAScope(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, mustAlloc(t, c, 100*mib, s).Free())
	require.NoError(t, c.EmptyCache(t.Context()))
	mustAlloc(t, c, 1, s)
	_, scope := c.Scope(t.Context(), "reserved")
	require.NoError(t, mustAlloc(t, c, 50*mib, s).Free())
	require.NoError(t, c.EmptyCache(t.Context()))
	mustAlloc(t, c, 3*mib, s)
	require.Equal(t, Level{Start: 2 * mib, Current: 22 * mib, Peak: 52 * mib}, scope.Window().Reserved)
	scope.End()
	mustAlloc(t, c, 80*mib, s)
	require.Equal(t, Level{Start: 2 * mib, Current: 22 * mib, Peak: 52 * mib}, scope.Window().Reserved)
}

// TestLastClaimIsAskedFirst: at a peak that moves from stream to stream the last claimer has the
// unused quota. Other streams keep theirs.
func TestLastClaimIsAskedFirst(t *testing.T) {
	c, dev := newCache(t, Config{})
	const size = 12 * mib // a segment: no parts
	quota := func(id uint64) delta { return c.shards.of(dev.stream(id)).quota[allPools] }
	for id := range uint64(6) {
		require.NoError(t, mustAlloc(t, c, size, dev.stream(1+id)).Free())
	}
	first, second := mustAlloc(t, c, size, dev.stream(1)), mustAlloc(t, c, size, dev.stream(1))
	c.ResetPeakStats() // all quotas are the first stream's
	freeAll(t, []Block{first, second})
	for id := uint64(2); id <= 6; id++ {
		mine, before := quota(id), quota(id-1)
		b := mustAlloc(t, c, size, dev.stream(id))
		require.EqualValues(t, size, quota(id)[gaugeAllocatedBytes]-mine[gaugeAllocatedBytes])
		require.EqualValues(t, size, before[gaugeAllocatedBytes]-quota(id - 1)[gaugeAllocatedBytes], "stream %d", id)
		require.Same(t, c.shards.of(dev.stream(id)), c.ledger.claimed.Load())
		require.NoError(t, b.Free())
	}
	require.EqualValues(t, size, quota(1)[gaugeAllocatedBytes])
	require.EqualValues(t, 2*size, c.MaxMemoryAllocated())
	require.NoError(t, c.check())
}

// TestQuotasOfAShardThatIsGone can't be claimed, even with an open scope that the shard does not
// have.
func TestQuotasOfAShardThatIsGone(t *testing.T) {
	c, dev := newCache(t, Config{})
	gone := dev.stream(1)
	require.NoError(t, mustAlloc(t, c, 1000, gone).Free())
	left := c.shards.of(gone)
	gone.closed.Store(true)
	b := mustAlloc(t, c, 1000, dev.stream(2))
	require.True(t, left.retired)
	_, scope := c.Scope(t.Context(), "later")
	defer scope.End()
	s := c.shards.of(dev.stream(2))
	s.mu.Lock()
	fits := s.claimFrom(left, placement.Small, &delta{gaugeAllocatedBytes: 1 << 40})
	s.mu.Unlock()
	require.False(t, fits)
	require.NoError(t, b.Free())
}
