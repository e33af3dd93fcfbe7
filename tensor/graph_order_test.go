package tensor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// replayMistakes are missing waits of a program with graphs and a second stream.
var replayMistakes = []string{"an input is written beside the replay", "a result is read beside the replay", "an input is overwritten beside the replay"}

// TestReplayMistake is one mistake or its corrected twin, in a process of its own.
func TestReplayMistake(t *testing.T) {
	name, corrected := child.Mistake(t)
	r := newRig(t, 64<<20)
	in, fresh := put(r, make([]float32, 4096)), put(r, make([]float32, 4096))
	defer in.Release()
	defer fresh.Release()
	var out *Tensor
	g := r.capture(r.ctx, func(ctx context.Context) (err error) {
		out, err = r.MulScalar(ctx, in, 2)
		return err
	})
	defer func() { assert.NoError(t, out.Release()) }()
	require.NoError(t, errors.Join(g.Replay(r.ctx), r.Synchronize(r.ctx)))
	side, err := r.dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	defer side.Close()
	follows := func(later, earlier device.Stream) {
		if corrected {
			e, err := r.dev.NewEvent(device.EventOptions{})
			require.NoError(t, err)
			require.NoError(t, errors.Join(earlier.Record(e), later.Wait(e), e.Close()))
		}
	}
	const bytes = 4 * 4096
	switch name {
	case replayMistakes[0]:
		require.NoError(t, side.CopyD2D(in.ptr(), fresh.ptr(), bytes))
		follows(r.Stream(), side)
		require.NoError(t, g.Replay(r.ctx))
	case replayMistakes[1]:
		require.NoError(t, g.Replay(r.ctx))
		follows(side, r.Stream())
		require.NoError(t, side.CopyD2D(fresh.ptr(), out.ptr(), bytes))
	case replayMistakes[2]:
		require.NoError(t, g.Replay(r.ctx))
		follows(side, r.Stream())
		require.NoError(t, side.CopyD2D(in.ptr(), fresh.ptr(), bytes))
	}
	time.Sleep(20 * time.Millisecond) // a wait of one for the other would hide a mistake
	require.NoError(t, errors.Join(side.Synchronize(r.ctx), r.Synchronize(r.ctx)))
}

// TestReplayMistakesAreReported: a replay's operations have the order of the function's operations,
// and no other order.
func TestReplayMistakesAreReported(t *testing.T) {
	if !race.Enabled {
		t.Skip("needs -race")
	}
	child.Mistakes(t, "TestReplayMistake", replayMistakes, 2)
}

// TestGraphsOutliveEmptyCache: graphs keep the free memory of their pool for as long as they exist,
// even if the pool is released.
func TestGraphsOutliveEmptyCache(t *testing.T) {
	r := newRig(t, 128<<20)
	in := put(r, make([]float32, 1<<20))
	defer in.Release()
	pool, err := r.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	var sum *Tensor
	g := r.capture(pool.Context(r.ctx), func(ctx context.Context) error {
		double, err := r.MulScalar(ctx, in, 2)
		if err != nil {
			return err
		}
		defer double.Release()
		sum, err = r.Sum(ctx, double)
		return err
	})
	defer func() { assert.NoError(t, sum.Release()) }()
	for i := range 4 {
		switch i {
		case 1:
			require.NoError(t, r.cache.EmptyCache(r.ctx))
		case 2:
			var all []memcache.Block // all free memory, so that the cache searches everywhere
			for {
				b, err := r.cache.Alloc(r.ctx, 4<<20, r.Stream())
				if err != nil {
					require.ErrorIs(t, err, memcache.ErrOutOfMemory)
					break
				}
				all = append(all, b)
			}
			for _, b := range all {
				defer func() { assert.NoError(t, b.Free()) }()
			}
		case 3:
			require.NoError(t, pool.Release())
			require.Error(t, pool.EmptyCache(r.ctx))
		}
		x := float32(i + 1)
		require.NoError(t, r.fill(r.ctx, in, float64(x)))
		require.NoError(t, g.Replay(r.ctx))
		require.Equal(t, []float32{2 * x * (1 << 20)}, get[float32](r, sum, nil), "case %d", i)
	}
	require.NoError(t, g.Close())
	require.NoError(t, pool.EmptyCache(r.ctx))
}
