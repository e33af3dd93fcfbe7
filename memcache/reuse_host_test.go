package memcache_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestReuseAcrossStreamsContents makes random calls on slow streams with little memory. Each block
// is filled with its number on its stream, and checked when it is freed, in half of the cases by
// another stream. A request that gets memory before its last use is complete changes what that use
// reads, and is a data race. The short form makes fewer calls.
func TestReuseAcrossStreamsContents(t *testing.T) {
	calls, reuses := uint64(400), int64(20)
	if testing.Short() {
		calls, reuses = 150, 5
	}
	for name, config := range map[string]memcache.Config{
		"when full":     {ReuseAcrossStreams: memcache.ReuseWhenFull},
		"before growth": {ReuseAcrossStreams: memcache.ReuseBeforeGrowth},
		"expandable":    {ReuseAcrossStreams: memcache.ReuseWhenFull, ExpandableSegments: true},
	} {
		t.Run(name, func(t *testing.T) {
			dev := cisterntest.Host(t, 64<<20)
			config.MemoryLimit = 40 << 20
			c, err := memcache.New(dev, config)
			require.NoError(t, err)
			var streams [3]device.Stream
			for i := range streams {
				streams[i] = cisterntest.Stream(t, dev)
			}
			wrong := make([]int, len(streams))
			r := rand.New(rand.NewPCG(3, 4))
			var live []*numbered
			free := func(i int) {
				n := live[i]
				live = slices.Delete(live, i, i+1)
				k := r.IntN(len(streams))
				if s := streams[k]; s != n.stream {
					filled := newEvent(dev)
					require.NoError(t, errors.Join(n.stream.Record(filled), s.Wait(filled), filled.Close(), n.RecordStream(s)))
				}
				require.NoError(t, n.check(streams[k], &wrong[k]))
				require.NoError(t, n.Free())
			}
			for number := range calls {
				if len(live) > 0 && r.IntN(5) < 2 || len(live) > 12 {
					free(r.IntN(len(live)))
					continue
				}
				s := streams[r.IntN(len(streams))]
				b, err := c.Alloc(t.Context(), 1<<20+r.Int64N(5<<20), s)
				if errors.Is(err, memcache.ErrOutOfMemory) && len(live) > 0 {
					free(0)
					continue
				}
				require.NoError(t, err)
				n := &numbered{Block: b, number: number + 1, stream: s}
				n.memory, err = dev.Bytes(b.Ptr(), b.Size())
				require.NoError(t, err)
				slow := func() { time.Sleep(time.Duration(number%4) * 50 * time.Microsecond) }
				require.NoError(t, errors.Join(s.Launch(&device.Launch{Func: slow}), n.fill(s)))
				live = append(live, n)
			}
			for len(live) > 0 {
				free(0)
			}
			for _, s := range streams {
				require.NoError(t, s.Synchronize(t.Context()))
			}
			require.Equal(t, make([]int, len(streams)), wrong, "words that changed while the block was in use")
			st := c.Stats()
			t.Logf("%d of %d requests were served by waits on the device, %d flushes", st.NumStreamReuses, st.Hits+st.Misses, st.NumSyncAllStreams)
			require.Greater(t, st.NumStreamReuses, reuses)
			require.NoError(t, c.EmptyCache(t.Context()))
			require.Zero(t, c.MemoryReserved())
			require.NoError(t, errors.Join(c.Close(), dev.Close()))
		})
	}
}

// TestReuseInACapture: a captured stream gets no memory for which it would have to wait, and lends
// none, because an event in between would make both streams part of one graph.
func TestReuseInACapture(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := memcache.New(dev, memcache.Config{ReuseAcrossStreams: memcache.ReuseBeforeGrowth})
	require.NoError(t, err)
	owner, user := cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)
	for _, captured := range []device.Stream{owner, user} {
		b, err := c.Alloc(t.Context(), 5<<20, owner)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		capture := captured.(device.GraphCapturer)
		require.NoError(t, capture.BeginCapture())
		got, err := c.Alloc(t.Context(), 5<<20, user)
		require.NoError(t, err)
		require.NotEqual(t, b.Ptr(), got.Ptr())
		require.True(t, capture.Capturing())
		graph, err := capture.EndCapture()
		require.NoError(t, err)
		require.Zero(t, graph.Nodes())
		require.NoError(t, errors.Join(graph.Close(), got.Free(), c.EmptyCache(t.Context())))
	}
	require.Zero(t, c.Stats().NumStreamReuses)
	require.NoError(t, errors.Join(c.Close(), dev.Close()))
}

// TestWaitStreamInACapture is refused for both streams, because the event in between would make
// both part of one graph.
func TestWaitStreamInACapture(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	own, by := cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)
	for _, captured := range []device.Stream{own, by} {
		capture := captured.(device.GraphCapturer)
		require.NoError(t, capture.BeginCapture())
		require.ErrorIs(t, c.WaitStream(own, by), device.ErrCapturing)
		graph, err := capture.EndCapture()
		require.NoError(t, err)
		require.Zero(t, graph.Nodes())
		require.NoError(t, graph.Close())
	}
	require.NoError(t, errors.Join(c.WaitStream(own, by), c.Close(), dev.Close()))
}
