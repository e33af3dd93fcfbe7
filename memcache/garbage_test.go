package memcache

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestAgeGoesOnAfterAFailedFree: a free segment that the driver fails to free keeps its age for the
// next collection, which returns only the older one of two.
func TestAgeGoesOnAfterAFailedFree(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib, GarbageCollectionThreshold: 0.5})
	s := dev.stream(1)
	old, young, other := mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, 22*mib, s), mustAlloc(t, c, 12*mib, s)
	require.NoError(t, old.Free())
	for range 8 {
		require.NoError(t, other.Free())
		other = mustAlloc(t, c, 12*mib, s)
	}
	require.NoError(t, young.Free())
	refused := errors.New("free refused")
	dev.gate = func(_ context.Context, call string) error {
		if call == "Free" {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, c.EmptyCache(t.Context()), refused)
	require.NoError(t, c.check())
	dev.gate = nil
	mustAlloc(t, c, 24*mib, s)
	require.NotContains(t, dev.live, old.Ptr())
	require.Contains(t, dev.live, young.Ptr())
	require.EqualValues(t, 1, c.Stats().NumDeviceFree)
}

// TestRefusedCollectionKeepsItsSegments: the driver refuses the first or the second of the segments
// that a collection has selected. The segments that were not freed serve requests as before.
func TestRefusedCollectionKeepsItsSegments(t *testing.T) {
	for refuses := range 2 {
		c, dev := newCache(t, Config{MemoryLimit: 200 * mib, GarbageCollectionThreshold: 0.1})
		s := dev.stream(1)
		idle := []Block{mustAlloc(t, c, 40*mib, s), mustAlloc(t, c, 60*mib, s), mustAlloc(t, c, 80*mib, s)}
		other := mustAlloc(t, c, 12*mib, s)
		freeAll(t, idle)
		for range 8 { // all three are old
			require.NoError(t, other.Free())
			other = mustAlloc(t, c, 12*mib, s)
		}
		refused, frees := errors.New("free refused"), 0
		dev.gate = func(_ context.Context, call string) error {
			if call != "Free" {
				return nil
			}
			if frees++; frees > refuses {
				return refused
			}
			return nil
		}
		_, err := c.Alloc(t.Context(), 100*mib, s)
		require.ErrorIs(t, err, refused)
		require.Equal(t, refuses+1, frees, "the first that is refused is the last")
		require.NoError(t, c.check())
		dev.gate = nil
		before := c.MemoryReserved()
		kept := 0
		for _, b := range idle {
			if _, ok := dev.live[b.Ptr()]; ok {
				kept++
				require.Equal(t, b.Ptr(), mustAlloc(t, c, b.Size(), s).Ptr())
			}
		}
		require.Equal(t, len(idle)-refuses, kept)
		require.Equal(t, before, c.MemoryReserved(), "those that are left serve requests")
	}
}

// walk creates free segments of these sizes in MiB, and returns those that are left after a request
// that releases the largest.
func oversizeWalk(t *testing.T, request int64, free ...int64) (left []int64) {
	c, dev := newCache(t, Config{MaxSplitSizeMB: 20, MaxNonSplitRoundingMB: 20})
	s := dev.stream(1)
	var blocks []Block
	for _, size := range free {
		blocks = append(blocks, mustAlloc(t, c, size*mib, s))
	}
	freeAll(t, blocks)
	require.NoError(t, c.SetMemoryLimit(c.MemoryReserved()))
	got := mustAlloc(t, c, request*mib, s)
	require.Zero(t, c.Stats().NumSyncAllStreams, "no flush")
	for i, b := range blocks {
		if _, ok := dev.live[b.Ptr()]; ok && b.Ptr() != got.Ptr() {
			left = append(left, free[i])
		}
	}
	require.NoError(t, c.check())
	return left
}

// TestOversizeRelease: it releases the smallest segment that is large enough, or as few of the
// largest ones as are together as large as the request.
func TestOversizeRelease(t *testing.T) {
	require.Equal(t, []int64{22}, oversizeWalk(t, 60, 22, 30, 30), "just enough")
	require.Equal(t, []int64{20, 22}, oversizeWalk(t, 58, 20, 22, 30, 30))
	require.Equal(t, []int64{22}, oversizeWalk(t, 62, 22, 30, 32))
	require.Equal(t, []int64{12}, oversizeWalk(t, 64, 12, 20, 22, 22), "20 MiB are as large as the limit of splitting")
	require.Equal(t, []int64{24, 80}, oversizeWalk(t, 30, 24, 70, 80), "20 MiB more would be wasted")
}

// TestOrphansKeepTheirAge: with Exact the memory of a closed stream keeps its age.
func TestOrphansKeepTheirAge(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib, GarbageCollectionThreshold: 0.5, Exact: true})
	s, gone := dev.stream(1), dev.stream(2)
	old, young, other := mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, 22*mib, gone), mustAlloc(t, c, 12*mib, s)
	require.NoError(t, old.Free())
	for range 8 {
		require.NoError(t, other.Free())
		other = mustAlloc(t, c, 12*mib, s)
	}
	require.NoError(t, young.Free())
	gone.closed.Store(true)
	mustAlloc(t, c, 24*mib, s)
	require.NotContains(t, dev.live, old.Ptr())
	require.Contains(t, dev.live, young.Ptr())
	require.NoError(t, c.check())
}

// TestEmptyCacheFails: memory that was not unmapped, because the driver failed earlier, is free
// again.
func TestEmptyCacheFails(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2})
	s := dev.stream(1)
	freeAll(t, holes(t, c, s, nil, 6, 4, 8))
	refused := errors.New("unmap refused")
	dev.gate = func(_ context.Context, call string) error {
		if call == "Unmap" {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, c.EmptyCache(t.Context()), refused)
	require.NoError(t, c.check())
	hits := c.Stats().Hits
	for _, size := range []int64{8, 6, 4} {
		mustAlloc(t, c, size*mib, s)
	}
	require.Equal(t, hits+3, c.Stats().Hits)
}

// TestOversizeReleaseFallsShort: segments below max_split_size are not released. Those that were
// released stay so, and a flush follows.
func TestOversizeReleaseFallsShort(t *testing.T) {
	c, dev := newCache(t, Config{MaxSplitSizeMB: 20})
	s := dev.stream(1)
	freeAll(t, []Block{mustAlloc(t, c, 12*mib, s), mustAlloc(t, c, 22*mib, s), mustAlloc(t, c, 24*mib, s)})
	require.NoError(t, c.SetMemoryLimit(c.MemoryReserved()))
	dev.calls = nil
	mustAlloc(t, c, 50*mib, s)
	st := c.Stats()
	require.EqualValues(t, 1, st.NumSyncAllStreams)
	require.EqualValues(t, 1, st.NumAllocRetries)
	require.EqualValues(t, 3, st.NumDeviceFree)
	require.Len(t, dev.calls, 4)
	require.Contains(t, dev.calls[0], fmt.Sprint(24*mib), "the largest first")
	require.Contains(t, dev.calls[2], fmt.Sprint(12*mib))
}

// TestCollectionLeavesParts: a free part of a segment in use is never collected, however old it is.
func TestCollectionLeavesParts(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib, GarbageCollectionThreshold: 0.5})
	s := dev.stream(1)
	part, rest := mustAlloc(t, c, 5*mib, s), mustAlloc(t, c, 5*mib, s)
	require.NoError(t, rest.Free())
	whole, other := mustAlloc(t, c, 30*mib, s), mustAlloc(t, c, 16*mib, s) // more than the part has
	for range 5 {
		require.NoError(t, other.Free())
		other = mustAlloc(t, c, 16*mib, s)
	}
	require.NoError(t, whole.Free())
	mustAlloc(t, c, 34*mib, s)
	require.Contains(t, dev.live, part.Ptr())
	require.NotContains(t, dev.live, whole.Ptr())
	require.EqualValues(t, 1, c.Stats().NumDeviceFree)
	require.NoError(t, c.check())
	require.Equal(t, rest.Ptr(), mustAlloc(t, c, 5*mib, s).Ptr())
}

// TestCollectionIsArmed while there is a limit and a threshold, also after changes of the limit.
// Only then requests count their searches.
func TestCollectionIsArmed(t *testing.T) {
	c, dev := newCache(t, Config{GarbageCollectionThreshold: 0.5})
	s, busy := dev.stream(1), dev.stream(2)
	busy.busy = true
	pending := mustAlloc(t, c, 5*mib, s) // requests have that to look at in any case
	require.NoError(t, errors.Join(pending.RecordStream(busy), pending.Free()))
	for _, f := range []struct {
		fraction float64
		armed    int64
	}{{0.5, 1}, {0.6, 1}, {1, 0}, {1, 0}, {0, 1}, {0.9, 1}, {1, 0}} {
		require.NoError(t, c.SetMemoryFraction(f.fraction))
		require.Equal(t, f.armed == 1, c.shards.gcArmed.Load(), "%v", f.fraction)
		if f.fraction > 0 {
			before := c.shards.gcClock[placement.Small].Load()
			require.NoError(t, mustAlloc(t, c, 512, s).Free())
			require.Equal(t, f.armed, c.shards.gcClock[placement.Small].Load()-before)
		}
	}
	without, _ := newCache(t, Config{MemoryLimit: 100 * mib})
	require.False(t, without.shards.gcArmed.Load())
	with, _ := newCache(t, Config{MemoryLimit: 100 * mib, GarbageCollectionThreshold: 0.5})
	require.True(t, with.shards.gcArmed.Load())
}
