package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestNoCaching(t *testing.T) {
	c, dev := newCache(t, Config{NoCaching: true, RoundupPower2Divisions: AllDivisions(4), ExpandableSegments: true, MaxSplitSizeMB: 20})
	s := dev.stream(1)
	ctx, scope := c.Scope(context.Background(), "step")
	for _, bytes := range []int64{1, 700, 30<<20 + 3} {
		dev.calls = nil
		b := allocIn(t, ctx, c, bytes, s)
		require.Equal(t, map[device.Ptr]int64{b.Ptr(): bytes}, dev.live)
		require.Equal(t, bytes, b.Size())
		require.Equal(t, []int64{bytes, bytes, 1}, []int64{c.MemoryAllocated(), c.MemoryReserved(), c.Stats().Segment.All.Current})
		require.Equal(t, bytes, scope.Own().Live)
		seg := c.Snapshot().Segments[0]
		require.Equal(t, []int64{bytes, bytes, bytes}, []int64{seg.TotalSize, seg.ActiveSize, seg.RequestedSize})
		require.NoError(t, b.Free())
		require.NoError(t, c.check())
		require.Len(t, dev.calls, 2)
		require.Empty(t, dev.live)
		require.ErrorIs(t, b.Free(), ErrFreed)
		require.ErrorIs(t, b.RecordStream(s), ErrFreed)
	}
	st := c.Stats()
	require.Equal(t, []int64{0, 3, 3, 3}, []int64{st.Hits, st.Misses, st.NumDeviceAlloc, st.NumDeviceFree})
	require.EqualValues(t, 30<<20+3, st.AllocatedBytes.All.Peak)
	require.Zero(t, st.ActiveBytes.All.Current)
	require.Equal(t, []int64{0, 0, -1}, []int64{st.OversizeAllocations.Peak, st.OversizeSegments.Peak, st.MaxSplitSize})
	require.Zero(t, scope.Own().Live)
	scope.End()

	config := Config{NoCaching: true}
	require.EqualValues(t, 700, config.RoundSize(700))
	require.EqualValues(t, 700, config.SegmentSize(700))
	require.Zero(t, config.RoundSize(-1))
	b := mustAlloc(t, c, 0, s)
	require.True(t, b.IsZero())
	mustAlloc(t, c, 100, s)
	require.ErrorContains(t, c.Close(), "blocks that were never freed: 1, of 100 bytes")
	require.Empty(t, dev.live)
	_, err := c.Alloc(ctx, 1, s)
	require.ErrorIs(t, err, ErrClosed)
}

// TestNoCachingWaitsForStreams: a block returns to the driver when its recorded streams have
// completed, and not before.
func TestNoCachingWaitsForStreams(t *testing.T) {
	c, dev := newCache(t, Config{NoCaching: true})
	s, waiting := dev.stream(1), &gatedStream{scriptedStream: dev.stream(2), entered: make(chan struct{}), leave: make(chan error, 1)}
	b := mustAlloc(t, c, 100, s)
	require.NoError(t, b.RecordStream(waiting))
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, b.Free()) })
	<-waiting.entered
	_, total, _ := dev.MemInfo()
	free, _, _ := dev.MemInfo()
	require.EqualValues(t, 100, total-free)
	require.ErrorIs(t, b.RecordStream(s), ErrFreed)
	st := c.Stats()
	require.Equal(t, []int64{0, 100}, []int64{st.AllocatedBytes.All.Current, st.ActiveBytes.All.Current})
	require.Equal(t, BlockPendingFree, c.Snapshot().Segments[0].Blocks[0].State)
	waiting.leave <- nil
	wg.Wait()
	require.Empty(t, dev.live)

	// A stream that fails keeps the memory until Close.
	b = mustAlloc(t, c, 100, s)
	require.NoError(t, b.RecordStream(waiting))
	waiting.leave <- device.ErrSticky
	wg.Go(func() { require.ErrorIs(t, b.Free(), device.ErrSticky) })
	<-waiting.entered
	wg.Wait()
	require.Len(t, dev.live, 1)
	require.NoError(t, c.check())
	require.ErrorIs(t, b.Free(), ErrFreed)

	// A recorded stream that was closed is done.
	b = mustAlloc(t, c, 100, s)
	require.NoError(t, b.RecordStream(waiting))
	waiting.closed.Store(true)
	waiting.leave <- device.ErrClosed
	wg.Go(func() { require.NoError(t, b.Free()) })
	<-waiting.entered
	wg.Wait()
	require.NoError(t, c.Close())
	require.Empty(t, dev.live)
}

// gatedStream is a stream whose Synchronize blocks until leave delivers its result.
type gatedStream struct {
	*scriptedStream
	entered chan struct{}
	leave   chan error
}

func (s *gatedStream) Synchronize(context.Context) error {
	s.entered <- struct{}{}
	return <-s.leave
}

// TestNoCachingWaitsForFrees: a request that needs the memory of a Free in flight gets it, and
// Close waits.
func TestNoCachingWaitsForFrees(t *testing.T) {
	c, dev := newCache(t, Config{NoCaching: true, MemoryLimit: 1000})
	waiting := &gatedStream{scriptedStream: dev.stream(2), entered: make(chan struct{}), leave: make(chan error)}
	var wg sync.WaitGroup
	freeing := func() {
		b := mustAlloc(t, c, 600, dev.stream(1))
		require.NoError(t, b.RecordStream(waiting))
		wg.Go(func() { require.NoError(t, b.Free()) })
		<-waiting.entered
	}
	freeing()
	wg.Go(func() {
		b, err := c.Alloc(context.Background(), 1000, dev.stream(1))
		require.NoError(t, errors.Join(err, b.Free()))
	})
	time.Sleep(10 * time.Millisecond)
	waiting.leave <- nil
	wg.Wait()
	freeing()
	wg.Go(func() { require.NoError(t, c.Close()) })
	time.Sleep(10 * time.Millisecond)
	require.Len(t, dev.live, 1, "Close waits")
	waiting.leave <- nil
	wg.Wait()
	require.Empty(t, dev.live)
}

func TestNoCachingLimits(t *testing.T) {
	c, dev := newCache(t, Config{NoCaching: true, MemoryLimit: 1000})
	s := dev.stream(1)
	b := mustAlloc(t, c, 1000, s)
	_, err := c.Alloc(context.Background(), 1, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, []int64{1, 1, 1000, 1000, 1000}, []int64{oom.Requested, oom.Segment, oom.Limit, oom.Allocated, oom.Reserved})
	require.EqualValues(t, 1, c.Stats().NumOOMs)
	remove := c.OnPressure(func(context.Context, int64) int64 { return b.Size() * boolToInt(b.Free() == nil) })
	mustAlloc(t, c, 600, s)
	remove()
	dev.failures = 1
	_, err = c.Alloc(context.Background(), 100, s)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	p, ctx := newPool(t, c, PoolOptions{NoSplit: true})
	d := allocIn(t, ctx, c, 100, s)
	require.NoError(t, p.Release())
	_, err = c.Alloc(ctx, 100, s)
	require.ErrorIs(t, err, ErrReleased)
	require.NoError(t, d.Free())
	require.EqualValues(t, 600, c.MemoryReserved())
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// TestNoCachingConcurrentSafe uses the host device under the race detector, with double frees.
func TestNoCachingConcurrentSafe(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := New(dev, Config{NoCaching: true})
	require.NoError(t, err)
	streams := make([]device.Stream, 3)
	for i := range streams {
		streams[i] = cisterntest.Stream(t, dev)
	}
	var wg sync.WaitGroup
	for id := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(id, 0))
			for range 100 {
				s, other := streams[r.IntN(3)], streams[r.IntN(3)]
				bytes := 1 + r.Int64N(10_000)
				b, err := c.Alloc(context.Background(), bytes, s)
				err = errors.Join(err, s.Memset(b.Ptr(), 1, bytes), other.Memset(b.Ptr(), 1, 0), b.RecordStream(other))
				twice := make(chan error)
				go func() { twice <- b.Free() }()
				first, second := b.Free(), <-twice
				if err != nil || (first == nil) == (second == nil) {
					t.Error(err, first, second)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, c.MemoryReserved())
	require.NoError(t, c.check())
	require.NoError(t, c.Close())
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
	require.NoError(t, dev.Close())
}

func TestNoCachingFromEnv(t *testing.T) {
	for _, test := range []struct {
		own, pytorch, options string // "-": not set
		want, fails           bool
	}{
		{"-", "-", "-", false, false}, {"1", "-", "-", true, false}, {"-", "1", "expandable_segments:True", true, false},
		{"0", "1", "-", false, false}, {"", "1", "-", false, false}, {"-", "0", "-", false, false},
		{"true", "junk", "-", true, false}, {"-", "yes", "-", false, true}, {"2", "1", "-", false, true},
	} {
		for name, v := range map[string]string{"CISTERN_NO_CACHING": test.own, "PYTORCH_NO_CUDA_MEMORY_CACHING": test.pytorch, "CISTERN_ALLOC_CONF": test.options} {
			t.Setenv(name, v)
			if v == "-" {
				require.NoError(t, os.Unsetenv(name))
			}
		}
		config, err := ConfigFromEnv()
		if test.fails {
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "NO_")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, test.want, config.NoCaching)
		require.Equal(t, test.options != "-", config.ExpandableSegments)
	}
}

// TestNoCachingFreeThatTheDriverRefuses: the block stays until Close, and Free returns the error.
func TestNoCachingFreeThatTheDriverRefuses(t *testing.T) {
	o := &spy{}
	c, dev := newCache(t, Config{NoCaching: true, Observer: o})
	o.cache = c
	s := dev.stream(7)
	a, b := mustAlloc(t, c, 100, s), mustAlloc(t, c, 200, s)
	refused := errors.New("refused")
	dev.gate = func(_ context.Context, call string) error {
		if call == "Free" {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, a.Free(), refused)
	dev.gate = nil
	require.NoError(t, b.Free())
	require.NoError(t, c.check())
	require.Equal(t, BlockPendingFree, c.Snapshot().Segments[0].Blocks[0].State)
	require.EqualValues(t, 100, c.MemoryReserved())
	var frees []OpInfo
	for _, info := range o.events {
		if info.Op == OpFree {
			frees = append(frees, info)
		}
	}
	require.Len(t, frees, 2)
	require.ErrorIs(t, frees[0].Err, refused)
	for i, info := range frees {
		require.Equal(t, []uint64{7, 7, uint64(3 + i), uint64(1 + i)}, []uint64{info.Stream, info.Shard, info.Seq, info.Serial})
		require.Equal(t, []int64{100 * int64(1+i), 100 * int64(1+i)}, []int64{info.Requested, info.Bytes})
		require.Equal(t, "small", info.Pool)
	}
	require.NoError(t, c.Close())
	require.Empty(t, dev.live)
	require.Equal(t, []string{"alloc", "empty_cache", "alloc_failed", "relabel", "wait", "unknown"},
		[]string{OpAlloc.String(), OpEmptyCache.String(), OpAllocFailed.String(), OpRelabel.String(), OpWait.String(), (OpWait + 1).String()})
}
