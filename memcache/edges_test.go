package memcache

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestRequestWhoseShardIsGone: a request fails with a closed stream if its stream closes meanwhile
// and another request retires the shard.
func TestRequestWhoseShardIsGone(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	require.NoError(t, mustAlloc(t, c, 1000, s).Free())
	r := &request{Want: placement.Want{Requested: 1000, Bytes: 1024}, shard: c.shards.of(s)}
	s.closed.Store(true)
	mustAlloc(t, c, 1000, other) // takes what the stream had
	require.Len(t, c.shards.list(), 1)
	served, err := r.search()
	require.False(t, served)
	require.ErrorIs(t, err, device.ErrClosed)
}

// TestPoolReleasedUnderARequest: a request whose pool is released fails, while it waits for another
// one that grows, or while it flushes, and the pool gets no more memory.
func TestPoolReleasedUnderARequest(t *testing.T) {
	x := newScene(t, Config{})
	pool, ctx := newPool(t, x.c, PoolOptions{})
	h := hangAt(x.dev, "Alloc")
	other := async(func() error { return grow(context.Background(), x) })
	<-h.entered
	waiting := async(func() error { _, err := x.c.Alloc(ctx, 1000, x.s); return err })
	time.Sleep(2 * time.Millisecond)
	require.NoError(t, pool.Release())
	close(h.leave)
	require.NoError(t, other())
	require.ErrorIs(t, waiting(), ErrReleased)

	pool, ctx = newPool(t, x.c, PoolOptions{})
	require.NoError(t, x.c.SetMemoryLimit(x.c.MemoryReserved()))
	h = hangAt(x.dev, "Free")
	flushing := async(func() error { _, err := x.c.Alloc(ctx, 70*mib, x.s); return err })
	<-h.entered
	require.NoError(t, pool.Release())
	close(h.leave)
	require.ErrorIs(t, flushing(), ErrReleased)
	for _, g := range x.c.Snapshot().Segments {
		require.Zero(t, g.PoolID)
	}
}

// TestDriverThatTakesNothingBack: a request returns the driver's error from any of its steps, and
// the free memory stays free.
func TestDriverThatTakesNothingBack(t *testing.T) {
	refused := errors.New("refused")
	for name, config := range map[string]Config{
		"collection": {GarbageCollectionThreshold: 0.01}, "oversize": {MaxSplitSizeMB: 20}, "flush": {}, "flush, exact": {Exact: true},
		"flush, expandable": {ExpandableSegments: true}, "remap": {ExpandableSegments: true, ExpandableRemap: true, ExpandableGranuleMB: 2},
	} {
		t.Run(name, func(t *testing.T) {
			config.MemoryLimit = 100 * mib
			c, dev := newCache(t, config)
			s, other := dev.stream(1), dev.stream(2)
			free := mustAlloc(t, c, 30*mib, s)
			keep := mustAlloc(t, c, 30*mib, s)
			require.NoError(t, free.Free())
			dev.gate = func(_ context.Context, call string) error {
				if call == "Free" || call == "Unmap" {
					return refused
				}
				return nil
			}
			by := map[bool]*scriptedStream{true: s, false: other}[name == "oversize"]
			_, err := c.Alloc(t.Context(), 60*mib, by)
			require.ErrorIs(t, err, refused)
			require.NotErrorIs(t, err, ErrOutOfMemory)
			require.Zero(t, c.Stats().NumAllocRetries)
			require.NoError(t, c.check())
			require.Equal(t, free.Ptr(), mustAlloc(t, c, 30*mib, s).Ptr())
			dev.gate = nil
			require.NoError(t, keep.Free())
		})
	}
}

// noAddresses is a device without virtual memory.
type noAddresses struct{ device.Device }

// TestRefusedCaches: New reports what is wrong with its arguments.
func TestRefusedCaches(t *testing.T) {
	dev := newScripted(1 << 30)
	for _, config := range []Config{{MaxSplitSizeMB: 1}, {PerProcessMemoryFraction: 2}, {PerProcessMemoryFraction: -1}, {MemoryLimit: -1}, {ExpandableRemap: true}} {
		_, err := New(dev, config)
		require.ErrorIs(t, err, ErrInvalid, config)
	}
	_, err := New(noAddresses{dev}, Config{ExpandableSegments: true})
	require.ErrorIs(t, err, ErrInvalid)
	c, err := New(noAddresses{dev}, Config{ExpandableSegments: true, NoCaching: true})
	require.NoError(t, err, "there they don't matter")
	require.EqualValues(t, -1, c.Stats().MaxSplitSize)
	c, err = New(dev, Config{MaxSplitSizeMB: 20, PerProcessMemoryFraction: 0.25, MemoryLimit: 5 * mib})
	require.NoError(t, err)
	require.EqualValues(t, 20*mib, c.Stats().MaxSplitSize)
	require.EqualValues(t, 5*mib, c.ledger.limit, "it holds in place of the fraction")
	require.NoError(t, c.SetMemoryFraction(0.3))
	require.EqualValues(t, 322_122_547, c.ledger.limit, "rounded down")
	require.NoError(t, c.SetMemoryFraction(1))
	require.False(t, c.ledger.limited())
}

// foreign is a device of another backend.
type foreign struct{ *scripted }

func (d foreign) Properties() device.Properties {
	p := d.scripted.Properties()
	p.Backend = "another"
	return p
}

type foreignStream struct {
	*scriptedStream
	dev foreign
}

func (s foreignStream) Device() device.Device { return s.dev }

// TestPeersReachEachOther: streams of another device are accepted if both devices have peers and
// the same backend.
func TestPeersReachEachOther(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := newScripted(1 << 30)
	b, user := mustAlloc(t, c, 1000, dev.stream(1)), far.stream(device.NewID())
	for _, peers := range [][2]bool{{false, false}, {true, false}, {false, true}} {
		dev.peers, far.peers = peers[0], peers[1]
		require.ErrorIs(t, b.RecordStream(user), ErrInvalid, peers)
	}
	dev.peers = true
	require.NoError(t, b.RecordStream(user))
	require.ErrorIs(t, b.RecordStream(foreignStream{user, foreign{far}}), ErrInvalid)
}

// TestZeroBlock: the zero Block has no memory, and its methods do nothing.
func TestZeroBlock(t *testing.T) {
	c, dev := newCache(t, Config{})
	b := mustAlloc(t, c, 0, dev.stream(1))
	require.True(t, b.IsZero())
	require.Equal(t, "empty block", b.String())
	require.NoError(t, errors.Join(b.RecordStream(nil), b.Free(), b.Free(), b.FreeContext(t.Context())))
	require.Zero(t, c.Stats().Allocation.All.Allocated)
	x := mustAlloc(t, c, 1500, dev.stream(7))
	require.Equal(t, "block 1 (1.50 KiB, stream 7)", x.String())
	require.Equal(t, device.Range{Ptr: x.Ptr() + 100, Bytes: 200}, x.Range(100, 200))
}

// TestSplitsAndMergesAllocateNothing: they make no Go allocation, because the records of absorbed
// blocks are reused.
func TestSplitsAndMergesAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks after each call allocate")
	}
	for _, config := range []Config{{}, {ExpandableSegments: true}} {
		c, dev := newCache(t, config)
		s, ctx := dev.stream(1), context.Background()
		mustAlloc(t, c, 1*mib, s)
		var blocks [20]Block
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for i := range blocks {
				var err error
				if blocks[i], err = c.Alloc(ctx, 10_000, s); err != nil {
					t.Error(err)
				}
			}
			for i := range blocks {
				if err := blocks[i*7%len(blocks)].Free(); err != nil {
					t.Error(err)
				}
			}
		}))
	}
}

// TestReleasedPoolIsForgotten: neither the cache nor a stream refers to it after its memory was
// returned.
func TestReleasedPoolIsForgotten(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	pool, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, allocIn(t, ctx, c, 1000, s).Free())
	require.Len(t, c.grower.lending.all(), 1)
	require.NoError(t, errors.Join(pool.Release(), pool.Release()))
	require.Empty(t, c.grower.lending.all())
	require.NoError(t, c.EmptyCache(t.Context()))
	require.Empty(t, slices.Collect(c.shards.of(s).arena.Pools()))
}

// TestCancelledWhileAnotherGrows: a call that stops waiting for the growth lock leaves it to its
// holder.
func TestCancelledWhileAnotherGrows(t *testing.T) {
	x := newScene(t, Config{})
	h := hangAt(x.dev, "Alloc")
	first := async(func() error { return grow(context.Background(), x) })
	<-h.entered
	for _, call := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return x.c.EmptyCache(ctx) },
		func(ctx context.Context) error { _, err := x.c.Alloc(ctx, 100*mib, x.other); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		before := x.c.Stats()
		require.ErrorIs(t, call(ctx), context.DeadlineExceeded)
		cancel()
		require.Equal(t, before, x.c.Stats())
		require.Len(t, x.c.grower.held, 1)
	}
	close(h.leave)
	require.NoError(t, first())
	require.Empty(t, x.c.grower.held)
}

// TestRecordsOfBlocksAreUsedAgain, after any use of their memory.
func TestRecordsOfBlocksAreUsedAgain(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {NoCaching: true}} {
		c, dev := newCache(t, config)
		s := dev.stream(1)
		for range 50 {
			require.NoError(t, mustAlloc(t, c, 3*mib, s).Free())
			require.NoError(t, c.EmptyCache(t.Context()))
		}
		n := 0
		for h := c.shards.of(s).unusedHandouts; h != nil; h = h.next {
			n++
		}
		require.Equal(t, 16, n, "as many as were made at once")
	}
}

// TestFirstHoleByAddress: memory is mapped into the first hole that is large enough, not into the smallest.
func TestFirstHoleByAddress(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	large, a, small, b := mustAlloc(t, c, 60*mib, s), mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, 20*mib, s)
	require.NoError(t, errors.Join(large.Free(), small.Free(), c.EmptyCache(t.Context())))
	require.Equal(t, large.Ptr(), mustAlloc(t, c, 20*mib, s).Ptr())
	require.NoError(t, errors.Join(a.Free(), b.Free()))
}

// TestSizesOfNothing: they are 0.
func TestSizesOfNothing(t *testing.T) {
	for _, bytes := range []int64{0, -1, -5000} {
		require.Zero(t, Config{}.RoundSize(bytes))
		require.Zero(t, Config{}.SegmentSize(bytes))
	}
}

// TestOpenStreamsKeepTheirSegments when a request takes those of closed ones.
func TestOpenStreamsKeepTheirSegments(t *testing.T) {
	c, dev := newCache(t, Config{})
	open, gone, s := dev.stream(1), dev.stream(2), dev.stream(3)
	mine, left := mustAlloc(t, c, 30*mib, open), mustAlloc(t, c, 30*mib, gone)
	require.NoError(t, errors.Join(mine.Free(), left.Free()))
	gone.closed.Store(true)
	require.Equal(t, left.Ptr(), mustAlloc(t, c, 30*mib, s).Ptr())
	require.NotEqual(t, mine.Ptr(), mustAlloc(t, c, 30*mib, s).Ptr())
	require.Equal(t, mine.Ptr(), mustAlloc(t, c, 30*mib, open).Ptr())
}
