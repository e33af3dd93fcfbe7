package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// TestOffloadOfUnchangedTensors: a tensor that was not written is offloaded without a copy, with
// the same bytes. After a write it is copied into the same pinned memory.
func TestOffloadOfUnchangedTensors(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	for range 3 {
		require.NoError(t, r.o.FetchKeep(r.ctx, x))
		require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
		require.Zero(t, r.o.Stats().Offloaded.Current)
		r.offload(x)
		require.Zero(t, r.cache.MemoryAllocated())
	}
	s := r.o.Stats()
	require.EqualValues(t, 3, s.Unchanged)
	require.EqualValues(t, 1, r.pool.Stats().D2HCopies-3, "and three for the test's own reads")
	require.NoError(t, r.o.FetchKeep(r.ctx, x))
	v, err := r.Rows(r.ctx, x, 1, 3)
	require.NoError(t, err)
	require.NoError(t, r.MulScalarInPlace(r.ctx, v, 5)) // through any view
	r.offload(x)
	require.NoError(t, r.o.FetchKeep(r.ctx, x))
	want := ramp(0)
	want[1], want[2] = 5, 10
	require.Equal(t, want, get[float32](r.rig, x, nil))
	require.EqualValues(t, 3, r.o.Stats().Unchanged)
	IncrementVersion(x)
	r.offload(x)
	require.EqualValues(t, 3, r.o.Stats().Unchanged, "the program says that it has written it")
	require.NoError(t, r.o.FetchKeep(r.ctx, x))
	r.offload(x)
	s = r.o.Stats()
	require.EqualValues(t, 4, s.Unchanged)
	require.Equal(t, x.Bytes(), s.PinnedBytes.Peak, "one buffer for all of it")
	require.NoError(t, x.Release())
	require.NoError(t, v.Release())
}

// TestOffloadOfUnchangedTensorsDoesNotWait: their memory is free although the copy stream to the
// host is busy.
func TestOffloadOfUnchangedTensorsDoesNotWait(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	idle(t, r.out)
	require.NoError(t, r.o.FetchKeep(r.ctx, x))
	idle(t, r.in)
	at := x.Block().Ptr()
	release := cisterntest.Hold(t, r.out)
	r.offload(x)
	idle(t, r.in)
	y := put(r.rig, ramp(1))
	require.Equal(t, at, y.Block().Ptr())
	release()
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.NoError(t, x.Release())
	require.NoError(t, y.Release())
}

// TestOffloadKeepsPinnedMemoryNoLonger than needed: a release, Fetch, and another offloader return
// it.
func TestOffloadKeepsPinnedMemoryNoLonger(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	second, err := NewOffloader(r.Runtime, OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	kept := func() *Tensor {
		x := put(r.rig, ramp(0))
		r.offload(x)
		require.NoError(t, r.o.FetchKeep(r.ctx, x))
		require.Len(t, r.o.idle, 0)
		return x
	}
	x := kept()
	require.NoError(t, x.Release())
	require.Len(t, r.o.idle, 1)
	require.Zero(t, r.cache.MemoryAllocated())
	x = kept()
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Len(t, r.o.idle, 1)
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.NoError(t, x.Release())
	x = kept()
	require.NoError(t, r.MulScalarInPlace(r.ctx, x, 2))
	away, err := second.Offload(r.ctx, x)
	require.NoError(t, err)
	require.True(t, away)
	require.Len(t, r.o.idle, 1)
	require.NoError(t, second.FetchKeep(r.ctx, x))
	require.Equal(t, float32(8190), get[float32](r.rig, x, nil)[4095])
	require.NoError(t, second.Close())
	require.Equal(t, x.Bytes(), second.Stats().PinnedBytes.Current)
	require.NoError(t, x.Release())
	require.Zero(t, second.Stats().PinnedBytes.Current)
	require.NoError(t, r.o.Close())
	require.Zero(t, r.o.Stats().PinnedBytes.Current)
}
