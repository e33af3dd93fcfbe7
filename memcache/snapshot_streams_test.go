package memcache

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// snapshotOf returns the block in a snapshot at the address of b.
func snapshotOf(c *Cache, b Block) BlockSnapshot {
	for _, s := range c.Snapshot().Segments {
		for _, o := range s.Blocks {
			if o.Address == b.Ptr() {
				return o
			}
		}
	}
	return BlockSnapshot{}
}

// TestSnapshotStreams: the recorded streams while a block is used, afterwards those with incomplete
// work.
func TestSnapshotStreams(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}} {
		c, dev := newCache(t, config)
		s, x, y := dev.stream(1), dev.stream(2), dev.stream(3)
		b := mustAlloc(t, c, 3*mib, s)
		require.Nil(t, snapshotOf(c, b).Streams)
		require.NoError(t, errors.Join(b.RecordStream(y), b.RecordStream(x), b.RecordStream(s), b.RecordStream(y)))
		require.Equal(t, []uint64{2, 3}, snapshotOf(c, b).Streams)
		require.NoError(t, b.EraseStream(x))
		require.Equal(t, []uint64{3}, snapshotOf(c, b).Streams)
		require.NoError(t, b.RecordStream(x))
		x.busy, y.busy = true, true
		require.NoError(t, b.Free())
		require.Equal(t, []uint64{2, 3}, snapshotOf(c, b).Streams)
		x.finish()
		require.NoError(t, c.PollFrees())
		got := snapshotOf(c, b)
		require.Equal(t, BlockPendingFree, got.State)
		require.Equal(t, []uint64{3}, got.Streams)
		y.finish()
		require.NoError(t, c.PollFrees())
		require.Nil(t, snapshotOf(c, b).Streams)
		require.Nil(t, snapshotOf(c, mustAlloc(t, c, 3*mib, s)).Streams, "a later hand-out")
	}
}

// TestSnapshotStreamsOfDeferredFrees: a free that is deferred while a pool is entered lists its
// streams.
func TestSnapshotStreamsOfDeferredFrees(t *testing.T) {
	c, dev := newCache(t, Config{Exact: true})
	s, x := dev.stream(1), dev.stream(2)
	p, _ := newPool(t, c, PoolOptions{})
	b := mustAlloc(t, c, 3*mib, s)
	require.NoError(t, b.RecordStream(x))
	leave, err := p.Enter()
	require.NoError(t, err)
	require.NoError(t, b.Free())
	require.Equal(t, []uint64{2}, snapshotOf(c, b).Streams)
	leave()
	require.NoError(t, c.PollFrees())
	require.Nil(t, snapshotOf(c, b).Streams)
}

// TestSnapshotStreamsOfLentBlocks: a block in another stream's memory lists the borrowing stream.
func TestSnapshotStreamsOfLentBlocks(t *testing.T) {
	c, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	require.NoError(t, mustAlloc(t, c, 3*mib, dev.stream(1)).Free())
	b := mustAlloc(t, c, 3*mib, dev.stream(2))
	require.Equal(t, []uint64{2}, snapshotOf(c, b).Streams)
	require.EqualValues(t, 1, c.Snapshot().Segments[0].Stream)
}

// TestSnapshotStreamsMeanwhile: snapshots read the streams of blocks while other goroutines record
// and free them. The race detector checks the rest.
func TestSnapshotStreamsMeanwhile(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}, {NoCaching: true}} {
		dev := cisterntest.Host(t, 64*mib)
		c, err := New(dev, config)
		require.NoError(t, err)
		side := cisterntest.Stream(t, dev)
		var all sync.WaitGroup
		for range 2 {
			s := cisterntest.Stream(t, dev)
			all.Go(func() {
				for range 200 {
					b, err := c.Alloc(context.Background(), 1000, s)
					assert.NoError(t, errors.Join(err, b.RecordStream(side), side.Memset(b.Ptr(), 1, 1000), b.Free()))
				}
			})
		}
		all.Go(func() {
			for range 200 {
				for _, s := range c.Snapshot().Segments {
					for _, b := range s.Blocks {
						assert.Subset(t, []uint64{side.ID()}, b.Streams)
					}
				}
			}
		})
		all.Wait()
		require.NoError(t, errors.Join(c.Close(), dev.Close()))
	}
}
