package memcache

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// TestPoolGrowsIntoItsOwnFreeMemory: a request of a private pool that finds no memory returns the
// pool's free memory, as a request of the default pool does. With Exact the memory stays, as in
// PyTorch.
func TestPoolGrowsIntoItsOwnFreeMemory(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {Exact: true}, {MemoryLimit: 70 << 30}, {NoCaching: true}} {
		dev, err := null.New(null.Config{Capacity: 80 << 30})
		require.NoError(t, err)
		c, err := New(dev, config)
		require.NoError(t, err)
		s, other := cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)
		p, ctx := newPool(t, c, PoolOptions{})
		q, inQ := newPool(t, c, PoolOptions{})
		require.NoError(t, allocIn(t, inQ, c, 4<<20, s).Free())
		kept := q.Stats().ReservedBytes.All.Current
		require.NoError(t, allocIn(t, ctx, c, 60<<30, other).Free())
		b, err := c.Alloc(ctx, 70<<30-20<<20, s)
		if config.Exact {
			require.ErrorIs(t, err, ErrOutOfMemory)
			require.ErrorIs(t, p.EmptyCache(ctx), ErrInvalid)
		} else {
			require.NoError(t, err, "%+v", config)
			require.NoError(t, b.Free())
		}
		require.Equal(t, kept, q.Stats().ReservedBytes.All.Current, "another pool's memory stays")
		if !config.Exact {
			require.NoError(t, p.EmptyCache(ctx))
			require.Zero(t, p.Stats().ReservedBytes.All.Current)
		}
		require.NoError(t, errors.Join(p.Release(), p.EmptyCache(ctx), c.Close(), dev.Close()))
	}
}

// TestCapturedPoolKeepsItsMemory: memory that a graph uses stays mapped, whatever the pool's
// requests need.
func TestCapturedPoolKeepsItsMemory(t *testing.T) {
	for _, config := range []Config{{}, {MaxSplitSizeMB: 20}, {ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true}} {
		dev := cisterntest.Host(t, 100<<20)
		c, err := New(dev, config)
		require.NoError(t, err)
		s := cisterntest.Stream(t, dev)
		p, ctx := newPool(t, c, PoolOptions{})
		capture := s.(device.GraphCapturer)
		require.NoError(t, capture.BeginCapture())
		low, high := allocIn(t, ctx, c, 30<<20, s), allocIn(t, ctx, c, 2<<20, s)
		require.NoError(t, errors.Join(s.Memset(low.Ptr(), 7, low.Size()), low.Free(), s.Memset(high.Ptr(), 7, high.Size())))
		graph, err := capture.EndCapture()
		require.NoError(t, err)
		reserved := c.MemoryReserved()

		_, err = c.Alloc(ctx, 80<<20, s)
		require.ErrorIs(t, err, ErrOutOfMemory, "%+v", config)
		require.NotErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, p.EmptyCache(ctx), ErrInvalid)
		_, err = c.TrimTo(ctx, 0)
		require.NoError(t, errors.Join(err, c.EmptyCache(ctx)))
		require.Equal(t, reserved, c.MemoryReserved())
		require.NoError(t, allocIn(t, ctx, c, 40<<20, s).Free())
		require.Equal(t, reserved+40<<20, c.MemoryReserved())
		require.NoError(t, errors.Join(graph.Replay(s), s.Synchronize(ctx)))

		require.NoError(t, errors.Join(graph.Close(), high.Free(), p.Release(), p.EmptyCache(ctx)))
		require.Zero(t, c.MemoryReserved())
		require.NoError(t, errors.Join(c.Close(), dev.Close()))
	}
}

// TestPoolOfABlockThatACaptureUses: a block that was allocated before a capture, and is freed in
// it, belongs to a graph as well.
func TestPoolOfABlockThatACaptureUses(t *testing.T) {
	dev := cisterntest.Host(t, 100<<20)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s, side := cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)
	for i, own := range []device.Stream{s, side} {
		p, ctx := newPool(t, c, PoolOptions{})
		b := allocIn(t, ctx, c, 30<<20, own)
		capture := s.(device.GraphCapturer)
		require.NoError(t, capture.BeginCapture())
		require.NoError(t, errors.Join(b.RecordStream(s), s.Memset(b.Ptr(), 7, b.Size()), b.Free()))
		graph, err := capture.EndCapture()
		require.NoError(t, err)
		require.ErrorContains(t, p.EmptyCache(ctx), "a capture uses it", "stream %d", i)
		require.NoError(t, errors.Join(c.PollFrees(), graph.Replay(s), s.Synchronize(ctx), graph.Close(), p.Release(), p.EmptyCache(ctx)))
		require.Zero(t, c.MemoryReserved())
	}
	require.NoError(t, errors.Join(c.Close(), dev.Close()))
}
