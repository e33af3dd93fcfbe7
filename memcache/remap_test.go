package memcache

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// holes allocates blocks of these sizes in MiB, each with a live one of 2 MiB after it, in an
// expandable segment with granules of 2 MiB. They are freed after the last allocation, because
// every miss takes free memory.
func holes(t *testing.T, c *Cache, s device.Stream, pool *Pool, sizes ...int64) (blocks []Block) {
	ctx := pool.Context(t.Context())
	for _, size := range sizes {
		blocks = append(blocks, allocIn(t, ctx, c, size*mib, s))
		allocIn(t, ctx, c, 2*mib, s)
	}
	return blocks
}

func freeAll(t *testing.T, blocks []Block) {
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
}

// freeMiB returns the free memory of a pool on all streams, in MiB.
func freeMiB(c *Cache, p *Pool) (sum int64) {
	for _, g := range c.Snapshot().Segments {
		if g.PoolID == p.ID() {
			sum += g.TotalSize - g.ActiveSize
		}
	}
	return sum / mib
}

// TestRemapTakesWhatIsMissing: it takes exactly as many granules as the request's growth needs, the
// largest holes first.
func TestRemapTakesWhatIsMissing(t *testing.T) {
	for _, f := range []struct{ request, left, holes int64 }{
		{12, 24, 0}, // a hit of the largest
		{14, 14, 2}, // 12 and 10
		{22, 14, 2},
		{24, 6, 3}, // and 8
		{60, 0, 5}, // all of 36
	} {
		c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
		s := dev.stream(1)
		freeAll(t, holes(t, c, s, nil, 4, 8, 10, 12, 2))
		before := c.Stats()
		mustAlloc(t, c, f.request*mib, s)
		require.EqualValues(t, f.left, freeMiB(c, nil), "%d MiB", f.request)
		require.EqualValues(t, f.holes, c.Stats().Since(before).NumDeviceFree, "%d MiB", f.request)
		require.NoError(t, c.check())
	}
}

// TestRemapPassesWhatHasNoWholeGranule: a free chunk without a whole granule is not taken, and does
// not count.
func TestRemapPassesWhatHasNoWholeGranule(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
	first, second, third := dev.stream(1), dev.stream(2), dev.stream(3)
	mustAlloc(t, c, 9*mib/4, first)
	inside := mustAlloc(t, c, 5*mib/4, first) // from 2.25 to 3.5 MiB
	mustAlloc(t, c, 5*mib/4, first)
	blocks := holes(t, c, second, nil, 4, 4)
	freeAll(t, append(blocks, inside))
	left := freeMiB(c, nil)
	before := c.Stats()
	mustAlloc(t, c, 4*mib, third)
	st := c.Stats().Since(before)
	require.EqualValues(t, 1, st.NumDeviceFree)
	require.Equal(t, before.ReservedBytes.All.Current, st.ReservedBytes.All.Current, "the memory moved")
	require.Equal(t, left-4, freeMiB(c, nil))
	require.NoError(t, c.check())
}

// TestRemapStaysInItsPool: it takes memory of the request's pool only, from any of its streams.
func TestRemapStaysInItsPool(t *testing.T) {
	for _, private := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
		p, err := c.NewPool(PoolOptions{})
		require.NoError(t, err)
		s, other := dev.stream(1), dev.stream(2)
		var blocks []Block
		for _, pool := range []*Pool{nil, p} {
			blocks = append(blocks, holes(t, c, s, pool, 4)...)
			blocks = append(blocks, holes(t, c, other, pool, 6)...)
		}
		freeAll(t, blocks)
		mine, others := (*Pool)(nil), p
		if private {
			mine, others = p, nil
		}
		before := c.Stats()
		allocIn(t, mine.Context(t.Context()), c, 10*mib, s)
		require.Zero(t, freeMiB(c, mine))
		require.EqualValues(t, 10, freeMiB(c, others))
		st := c.Stats().Since(before)
		require.EqualValues(t, 2, st.NumDeviceFree)
		require.Equal(t, before.ReservedBytes.All.Current, st.ReservedBytes.All.Current, "the memory moved")
		require.NoError(t, c.check())
	}
}

// TestRemapLeavesTheBlockThatGrows: the free end of the mapped memory becomes part of the allocated
// block.
func TestRemapLeavesTheBlockThatGrows(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
	s := dev.stream(1)
	blocks := holes(t, c, s, nil, 6, 4)
	end := mustAlloc(t, c, 12*mib, s)
	freeAll(t, append(blocks, end))
	dev.calls = nil
	got := mustAlloc(t, c, 18*mib, s)
	require.Equal(t, end.Ptr(), got.Ptr())
	require.EqualValues(t, 4, freeMiB(c, nil), "6 MiB were missing")
	require.Len(t, dev.calls, 2, "%v", dev.calls)
	require.NoError(t, c.check())
}

// TestRemapFails: memory that was not unmapped is free again.
func TestRemapFails(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
	s := dev.stream(1)
	freeAll(t, holes(t, c, s, nil, 6, 4, 8))
	refused := errors.New("unmap refused")
	dev.gate = func(_ context.Context, call string) error {
		if call == "Unmap" {
			return refused
		}
		return nil
	}
	_, err := c.Alloc(t.Context(), 18*mib, s)
	require.ErrorIs(t, err, refused)
	require.NoError(t, c.check())
	hits := c.Stats().Hits
	for _, size := range []int64{8, 6, 4} {
		mustAlloc(t, c, size*mib, s)
	}
	require.Equal(t, hits+3, c.Stats().Hits)
}
