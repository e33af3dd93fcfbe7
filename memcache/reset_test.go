package memcache

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWindowAcrossReset: a window counts events before and after a reset of the statistics, also if
// the counters have since passed their values at its start.
func TestWindowAcrossReset(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	pairs := func(n int) {
		for range n {
			require.NoError(t, mustAlloc(t, c, 512, s).Free())
		}
	}
	pairs(100)
	_, scope := c.Scope(context.Background(), "across a reset")
	pairs(10)
	c.ResetAccumulatedStats()
	pairs(150)
	w := scope.Window()
	require.EqualValues(t, 160, w.Allocations)
	require.EqualValues(t, 160, w.Hits)
	require.Zero(t, w.Misses)
	mustAlloc(t, c, 3*mib, s)
	c.ResetAccumulatedStats()
	scope.End()
	w = scope.Window()
	require.EqualValues(t, 161, w.Allocations)
	require.EqualValues(t, 1, w.Misses)
	require.EqualValues(t, 1, w.DriverAllocs)
}

// TestSinceCountsAcrossResets compares Since at random moments with a second cache that runs the
// same program without resets.
func TestSinceCountsAcrossResets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c, dev := newCache(t, Config{MaxSplitSizeMB: 32, PerProcessMemoryFraction: 0.1})
	ref, refDev := newCache(t, Config{MaxSplitSizeMB: 32, PerProcessMemoryFraction: 0.1})
	type moment struct {
		reset, plain Stats
		requests     int64
	}
	moments := []moment{{}}
	var requests int64
	var live [][2]Block
	for range 1000 {
		switch n := r.IntN(20); {
		case n == 0:
			c.ResetAccumulatedStats()
		case n == 1:
			moments = append(moments, moment{c.Stats(), ref.Stats(), requests})
		case n == 2:
			require.NoError(t, c.EmptyCache(t.Context()))
			require.NoError(t, ref.EmptyCache(t.Context()))
		case n < 10 && len(live) > 0:
			i := r.IntN(len(live))
			require.NoError(t, live[i][0].Free())
			require.NoError(t, live[i][1].Free())
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		default:
			bytes, id := int64(1)<<r.IntN(27), uint64(r.IntN(3))
			a, err := c.Alloc(t.Context(), bytes, dev.stream(id))
			b, refErr := ref.Alloc(t.Context(), bytes, refDev.stream(id))
			require.Equal(t, refErr == nil, err == nil)
			requests++
			if err == nil {
				live = append(live, [2]Block{a, b})
			}
		}
		then := moments[r.IntN(len(moments))]
		since := c.Stats().Since(then.reset)
		require.Equal(t, ref.Stats().Since(then.plain), since)
		require.Equal(t, requests-then.requests, since.Hits+since.Misses)
	}
	require.Positive(t, ref.Stats().NumOOMs)
	require.Positive(t, ref.Stats().OversizeSegments.Freed)
}

// TestResetPeaks: every peak becomes the current value, those of shards and those of segments.
// Windows keep theirs.
func TestResetPeaks(t *testing.T) {
	c, dev := newCache(t, Config{MaxSplitSizeMB: 32})
	a, b := dev.stream(1), dev.stream(2)
	mustAlloc(t, c, 700, a)
	_, scope := c.Scope(t.Context(), "window")
	freeAll(t, []Block{mustAlloc(t, c, 64*mib, a), mustAlloc(t, c, 3*mib, b), mustAlloc(t, c, 30*mib, b), mustAlloc(t, c, 1000, b)})
	require.NoError(t, c.EmptyCache(t.Context()))
	c.ResetPeakStats()
	st := c.Stats()
	for i, q := range st.quantities() {
		require.Equal(t, q.Current, q.Peak, "quantity %d", i)
	}
	require.EqualValues(t, 2*mib, c.MaxMemoryReserved())
	require.EqualValues(t, 1024, c.MaxMemoryAllocated())
	w := scope.Window()
	require.EqualValues(t, 97*mib+2048, w.Allocated.Peak)
	require.EqualValues(t, 97*mib+1700, w.Requested.Peak)
	require.NoError(t, c.check())
	mustAlloc(t, c, 512, b)
	require.EqualValues(t, 1536, c.MaxMemoryAllocated())
	require.EqualValues(t, 4*mib, c.MaxMemoryReserved())
	scope.End()
}

// TestResetsAfterEachOther: each reset starts anew, whatever was reset before.
func TestResetsAfterEachOther(t *testing.T) {
	c, dev := newCache(t, Config{})
	for range 3 {
		freeAll(t, []Block{mustAlloc(t, c, 3*mib, dev.stream(1)), mustAlloc(t, c, 700, dev.stream(2))})
		require.EqualValues(t, 2, c.Stats().Allocation.All.Allocated)
		require.EqualValues(t, 2, c.Stats().Hits+c.Stats().Misses)
		c.ResetAccumulatedStats()
		s := c.Stats()
		for _, q := range s.quantities() {
			require.Zero(t, q.Allocated+q.Freed)
		}
		for _, n := range s.counts() {
			require.Zero(t, *n)
		}
	}
}
