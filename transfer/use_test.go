package transfer_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Mixed use does not need more pinned memory, events or Go objects over time.
func TestUseStaysSmall(t *testing.T) {
	steps := 20_000
	if testing.Short() || race.Enabled {
		steps = 2_000
	}
	r := newRig(t, transfer.Config{})
	require.NoError(t, r.pool.Close())
	dev := &eventCounter{Device: r.dev}
	var err error
	r.pool, err = transfer.New(dev, transfer.Config{Observer: &canceller{op: transfer.OpNext}})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(5, 6))
	blocks := [2]memcache.Block{r.alloc(t, 64<<10, r.a), r.alloc(t, 64<<10, r.b)}
	mine := make([]byte, 64<<10)
	data := fill(make([]byte, 64<<10), 1)
	objects := func() int64 {
		require.NoError(t, r.dev.Synchronize(t.Context()))
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapObjects)
	}
	var first, peak int64
	var events int
	for step := range steps {
		i := rng.IntN(2)
		mixed(t, r, rng, [2]device.Stream{r.a, r.b}[i], blocks[i], mine, data)
		if step%50 == 0 { // the streams' depth bounds what may be pending
			require.NoError(t, r.dev.Synchronize(t.Context()))
		}
		if (step+1)%(steps/4) > 0 {
			continue
		}
		open := dev.open()
		n, st := objects(), r.pool.Stats()
		require.Zero(t, st.ActiveRequests.Current)
		require.Zero(t, st.Registered.Current)
		if first == 0 {
			first, peak, events = n, st.AllocatedBytes.Peak, open
			continue
		}
		if !race.Enabled { // in race builds the garbage collector closes events
			require.Less(t, n, first+500, "Go objects after %d steps", step+1)
			require.Less(t, open, events+100, "events after %d steps", step+1)
		}
		require.LessOrEqual(t, st.AllocatedBytes.Peak, 2*peak, "pinned bytes after %d steps", step+1)
	}
	require.Greater(t, r.pool.Stats().H2DCopies, int64(steps)/3)
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	require.Zero(t, r.pool.Stats().AllocatedBytes.Current)
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
}

// mixed makes one call, and sometimes waits for it.
func mixed(t *testing.T, r *rig, rng *rand.Rand, s device.Stream, block memcache.Block, mine, data []byte) {
	ctx, n := t.Context(), int64(1+rng.IntN(64<<10))
	var c *transfer.Copy
	var err error
	switch rng.IntN(8) {
	case 0:
		c, err = r.pool.Upload(ctx, s, block, 0, data[:n])
	case 1:
		err = r.pool.Download(ctx, s, make([]byte, n), block, 0)
	case 2:
		c, err = r.pool.Fill(ctx, s, block, 0, n, 3)
	case 3:
		b := r.get(t, n)
		if c, err = r.pool.H2D(ctx, s, block, 0, b, 0, n); err == nil && n%2 == 0 {
			c, err = r.pool.D2H(ctx, s, b, 0, block, 0, n)
		}
		require.NoError(t, b.Release())
		require.ErrorIs(t, b.Release(), transfer.ErrReleased)
	case 4:
		batch := r.pool.NewBatch()
		require.NoError(t, batch.UploadPadded(ctx, block, 0, data[:n/2], n))
		_, err := batch.Output(ctx, block, 0, n)
		require.NoError(t, err)
		c, err = batch.Submit(ctx, s)
		require.NoError(t, err)
		if n%3 == 0 {
			var out [][]byte
			require.NoError(t, batch.Collect(ctx, &out))
		}
		require.NoError(t, batch.Close())
	case 5:
		reg, err := r.pool.Register(ctx, mine)
		require.NoError(t, err)
		c, err = r.pool.H2D(ctx, s, block, 0, reg, 0, n)
		require.NoError(t, err)
		require.NoError(t, reg.Release())
	case 6:
		b := r.get(t, n)
		c, err = r.pool.Launch(ctx, s, r.inPlace(t, b, b.Bytes(), 0, n, 1), transfer.BufferUse{Buffer: b, Writes: true})
		require.NoError(t, b.Release())
	case 7: // mistakes
		_, err := r.pool.H2D(ctx, s, block, n, transfer.Buffer{}, 0, n)
		require.ErrorIs(t, err, transfer.ErrRange)
		_, err = r.pool.Get(cancelled(), n)
		require.ErrorIs(t, err, cancelled().Err())
	}
	require.NoError(t, err)
	if c != nil && rng.IntN(4) == 0 {
		require.NoError(t, c.Wait(ctx))
	}
}

// A buffer that a stream has written and then read is still in flight for writing, so another
// stream's read runs after it.
func TestReadAfterWriteThatWasReadSince(t *testing.T) {
	r := newRig(t, transfer.Config{})
	src, first, second := r.alloc(t, 1000, r.a), r.alloc(t, 1000, r.a), r.alloc(t, 1000, r.b)
	b := r.get(t, 1000)
	_, err := r.pool.Fill(t.Context(), r.a, src, 0, 1000, 7)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	_, err = r.pool.D2H(t.Context(), r.a, b, 0, src, 0, 1000)
	require.NoError(t, err)
	_, err = r.pool.H2D(t.Context(), r.a, first, 0, b, 0, 1000)
	require.NoError(t, err)
	read, err := r.pool.H2D(t.Context(), r.b, second, 0, b, 0, 1000)
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, read.Wait(soon), context.DeadlineExceeded, "it waits for the stream that is held up")
	open()
	require.NoError(t, read.Wait(t.Context()))
	require.Equal(t, bytes.Repeat([]byte{7}, 1000), r.read(t, r.b, second)[:1000])
	require.NoError(t, b.Release())
	for _, block := range []memcache.Block{src, first, second} {
		require.NoError(t, block.Free())
	}
}
