package memcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// trimTo is TrimTo in MiB, which must release the given number.
func trimTo(t *testing.T, c *Cache, to, want int64) {
	t.Helper()
	before := c.MemoryReserved()
	released, err := c.TrimTo(t.Context(), to*mib)
	require.NoError(t, err)
	require.Equal(t, want*mib, released)
	require.Equal(t, before-released, c.MemoryReserved())
	require.NoError(t, c.check())
}

// gone returns which of the blocks' segments were returned to the driver.
func gone(dev *scripted, blocks []Block) (list []int) {
	for i, b := range blocks {
		if _, ok := dev.live[b.Ptr()]; !ok {
			list = append(list, i)
		}
	}
	return list
}

// TestTrim: it returns memory with as few calls as possible, the smallest segment that is enough,
// and no memory in use.
func TestTrim(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	var blocks []Block
	for _, size := range []int64{12, 20, 40, 60, 30} {
		blocks = append(blocks, mustAlloc(t, c, size*mib, s))
	}
	freeAll(t, blocks[:4])
	trimTo(t, c, 162, 0)
	trimTo(t, c, 200, 0)
	require.Empty(t, gone(dev, blocks))
	trimTo(t, c, 161, 12)
	require.Equal(t, []int{0}, gone(dev, blocks))
	trimTo(t, c, 85, 80) // 65 MiB too many: 60, and the smallest that has 5
	require.Equal(t, []int{0, 1, 3}, gone(dev, blocks))
	require.EqualValues(t, 3, c.Stats().NumDeviceFree)
	require.Zero(t, c.Stats().NumSyncAllStreams, "nothing was waited for")
	trimTo(t, c, 0, 40)
	require.EqualValues(t, 30*mib, c.MemoryReserved(), "what is in use stays")
	_, err := c.TrimTo(t.Context(), -1)
	require.ErrorIs(t, err, ErrInvalid)
	var none context.Context
	_, err = c.TrimTo(none, 0)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "memcache: TrimTo")
	require.NoError(t, blocks[4].Free())
	require.NoError(t, c.Close())
	_, err = c.TrimTo(t.Context(), 0)
	require.ErrorIs(t, err, ErrClosed)
}

// TestTrimOrder: released pools first, then old segments, then young ones, then the small pool.
// Unreleased pools stay.
func TestTrimOrder(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 1 << 29, GarbageCollectionThreshold: 0.9})
	s := dev.stream(1)
	over, inOver := newPool(t, c, PoolOptions{})
	_, inKept := newPool(t, c, PoolOptions{})
	old, young := mustAlloc(t, c, 30*mib, s), mustAlloc(t, c, 30*mib, dev.stream(2))
	blocks := []Block{mustAlloc(t, c, 100, s), young, old, allocIn(t, inOver, c, 100, s), allocIn(t, inKept, c, 12*mib, s)}
	require.NoError(t, old.Free())
	require.NoError(t, mustAlloc(t, c, 12*mib, s).Free()) // time goes by
	require.NoError(t, errors.Join(young.Free(), blocks[0].Free(), blocks[3].Free(), blocks[4].Free(), over.Release()))
	require.NoError(t, c.SetMemoryLimit(1<<30))
	var order [][]int
	for range 5 {
		_, err := c.TrimTo(t.Context(), c.MemoryReserved()-1)
		require.NoError(t, err)
		order = append(order, gone(dev, blocks))
	}
	require.Equal(t, [][]int{{3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}, order)
	require.EqualValues(t, 12*mib, c.MemoryReserved())
}

// TestTrimWaits for pending frees only if necessary.
func TestTrimWaits(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, side := dev.stream(1), dev.stream(2)
	side.busy = true
	late, free := mustAlloc(t, c, 40*mib, s), mustAlloc(t, c, 12*mib, s)
	require.NoError(t, errors.Join(late.RecordStream(side), late.Free(), free.Free()))
	trimTo(t, c, 40, 12)
	require.Zero(t, c.Stats().NumSyncAllStreams)
	require.EqualValues(t, 40*mib, c.Stats().ActiveBytes.All.Current)
	trimTo(t, c, 39, 40)
	require.EqualValues(t, 1, c.Stats().NumSyncAllStreams)
	require.Zero(t, c.Stats().ActiveBytes.All.Current)

	side.busy = true
	late = mustAlloc(t, c, 40*mib, s)
	require.NoError(t, errors.Join(late.RecordStream(side), late.Free()))
	ctx, cancel := context.WithCancel(t.Context())
	dev.gate = func(context.Context, string) error { cancel(); return ctx.Err() }
	released, err := c.TrimTo(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, released)
	dev.gate = nil
	trimTo(t, c, 0, 40)
}

// TestTrimEntered: while a pool is entered, with Exact, only memory of released pools is returned,
// and nothing waits.
func TestTrimEntered(t *testing.T) {
	c, dev := newCache(t, Config{Exact: true})
	s := dev.stream(1)
	p, in := newPool(t, c, PoolOptions{})
	over, inOver := newPool(t, c, PoolOptions{})
	require.NoError(t, errors.Join(mustAlloc(t, c, 30*mib, s).Free(), allocIn(t, in, c, 12*mib, s).Free(), allocIn(t, inOver, c, 14*mib, s).Free(), over.Release()))
	leave, err := p.Enter()
	require.NoError(t, err)
	trimTo(t, c, 0, 14)
	require.Zero(t, c.Stats().NumSyncAllStreams)
	leave()
	trimTo(t, c, 0, 30)
}

// TestTrimExpandable: it returns as many granules as needed, from the end of a chunk. The front,
// which requests take first, stays.
func TestTrimExpandable(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true, ExpandableGranuleMB: 2})
	s := dev.stream(1)
	hole, keep := mustAlloc(t, c, 40*mib, s), mustAlloc(t, c, 2*mib, s)
	require.NoError(t, hole.Free())
	trimTo(t, c, 35, 8)
	again := mustAlloc(t, c, 32*mib, s)
	require.Equal(t, hole.Ptr(), again.Ptr())
	require.EqualValues(t, 34*mib, c.MemoryReserved(), "no memory was asked for")
	require.NoError(t, errors.Join(again.Free(), keep.Free()))
	trimTo(t, c, 0, 34)
	require.Empty(t, dev.mapped)
	require.Empty(t, dev.reserved, "the addresses went, too")
}

// TestTrimFails: the bytes returned before the driver's error are reported, and the rest is free
// again.
func TestTrimFails(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: expandable})
		for i := range 3 {
			b := mustAlloc(t, c, 40*mib, dev.stream(uint64(1+i)))
			require.NoError(t, b.Free())
		}
		refused := errors.New("refused")
		frees := 0
		dev.gate = func(_ context.Context, call string) error {
			if call == "Free" || call == "Unmap" {
				if frees++; frees > 1 {
					return refused
				}
			}
			return nil
		}
		released, err := c.TrimTo(t.Context(), 10*mib)
		require.ErrorIs(t, err, refused)
		require.Equal(t, 120*mib-c.MemoryReserved(), released)
		require.Positive(t, released)
		require.NoError(t, c.check())
		dev.gate = nil
		trimTo(t, c, 0, 120-released/mib)
	}
}

// TestTrimPrograms: after any program at most the given bytes are reserved, or EmptyCache would
// return nothing more.
func TestTrimPrograms(t *testing.T) {
	configs := []Config{{}, {Exact: true}, {ExpandableSegments: true}, {ExpandableSegments: true, ExpandableGranuleMB: 2}, {MaxSplitSizeMB: 20},
		{MemoryLimit: 1 << 29, GarbageCollectionThreshold: 0.5}, {NoCaching: true}}
	kept, emptied := 0, 0
	seeds := uint64(20 * len(configs))
	if testing.Short() {
		seeds /= 4
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 16))
		c, dev := newCache(t, configs[seed%uint64(len(configs))])
		streams := []device.Stream{dev.stream(1), dev.stream(2), dev.stream(3)}
		var live []Block
		for range 200 {
			s := streams[r.IntN(len(streams))]
			if len(live) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(live))
				require.NoError(t, live[i].Free())
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			} else if b, err := c.Alloc(t.Context(), 1+r.Int64N(4*mib<<r.IntN(4)), s); err == nil {
				live = append(live, b)
			}
			if r.IntN(12) > 0 {
				continue
			}
			before := c.MemoryReserved()
			to := before - r.Int64N(before/2+1)
			released, err := c.TrimTo(t.Context(), to)
			require.NoError(t, err)
			require.NoError(t, c.check())
			require.Equal(t, before-released, c.MemoryReserved())
			var driver int64
			for _, n := range dev.live {
				driver += n
			}
			for _, n := range dev.mapped {
				driver += n
			}
			require.Equal(t, c.MemoryReserved(), driver, "what the driver says")
			if kept++; c.MemoryReserved() > to {
				emptied++
				kept--
				require.NoError(t, c.EmptyCache(t.Context()))
				require.Equal(t, before-released, c.MemoryReserved(), "something was left to return")
			}
		}
		freeAll(t, live)
		require.NoError(t, c.Close())
	}
	require.Greater(t, kept, 300*int(seeds)/140)
	require.Greater(t, emptied, 50*int(seeds)/140)
}

// TestHistoryStreamOfTrim: the stream records the requested bytes, and whether the call succeeded.
func TestHistoryStreamOfTrim(t *testing.T) {
	c, dev := newCache(t, Config{})
	require.NoError(t, mustAlloc(t, c, 12*mib, dev.stream(1)).Free())
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	refused := errors.New("refused")
	dev.gate = func(context.Context, string) error { return refused }
	_, err = c.TrimTo(t.Context(), 4000)
	require.ErrorIs(t, err, refused)
	dev.gate = nil
	_, err = c.TrimTo(t.Context(), 5000)
	require.NoError(t, err)
	events, err := stream.Next(0)
	require.NoError(t, err)
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Action, " ", e.Size))
	}
	require.Equal(t, []string{"failed 4000", "segment_free 12582912", "trim_to 5000"}, got)
}
