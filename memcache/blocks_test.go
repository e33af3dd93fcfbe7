package memcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// TestBlocks: the blocks of a launch are recorded and freed together, except those that were freed
// before.
func TestBlocks(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 40 * mib})
	s, side := dev.stream(1), dev.stream(2)
	var launch Blocks
	require.NoError(t, launch.Free())
	for range 2 { // the second time in the memory of the first
		x, err := launch.Alloc(t.Context(), c, 3*mib, s)
		require.NoError(t, err)
		y, err := launch.Alloc(t.Context(), c, 100, s)
		require.NoError(t, err)
		zero, err := launch.Alloc(t.Context(), c, 0, s)
		require.NoError(t, err)
		require.True(t, zero.IsZero())
		_, err = launch.Alloc(t.Context(), c, 50*mib, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
		side.busy = true
		require.NoError(t, launch.RecordStream(side))
		require.Equal(t, []uint64{2}, snapshotOf(c, x).Streams)
		require.Equal(t, []uint64{2}, snapshotOf(c, y).Streams)
		require.NoError(t, y.Free())
		require.NoError(t, launch.Free())
		require.Zero(t, c.MemoryAllocated())
		require.EqualValues(t, 2, c.Stats().Active.All.Current, "both wait for the other stream")
		side.finish()
		require.NoError(t, c.PollFrees())
		require.NoError(t, launch.Free(), "empty")
	}
	lost, err := launch.Alloc(t.Context(), c, 100, s)
	require.NoError(t, err)
	require.Error(t, c.Close())
	require.ErrorIs(t, launch.RecordStream(side), ErrClosed)
	require.ErrorIs(t, launch.Free(), ErrClosed)
	require.NoError(t, launch.Free(), "an error is returned once")
	require.ErrorIs(t, lost.Free(), ErrClosed)
}

// TestBlocksAllocateNothing: a Blocks of known size makes no Go allocation.
func TestBlocksAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks allocate")
	}
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	var launch Blocks
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 3 {
			_, _ = launch.Alloc(t.Context(), c, 100, s)
		}
		_ = launch.RecordStream(s)
		_ = launch.Free()
	}))
}
