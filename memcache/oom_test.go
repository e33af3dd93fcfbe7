package memcache

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

func TestMemoryFraction(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, c.SetMemoryFraction(0.5))
	b := mustAlloc(t, c, 512<<20, s) // exactly half of 1 GiB
	_, err := c.Alloc(context.Background(), 1, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, OutOfMemoryError{
		Requested: 1, Segment: 2 << 20, Device: "scripted", Total: 1 << 30, Free: 512 << 20, Limit: 512 << 20,
		Allocated: 512 << 20, Reserved: 512 << 20, Advice: "memory_limit:538968064 (514.00 MiB) would have served it",
	}, *oom)
	require.ErrorContains(t, err, "the cache may reserve 512.00 MiB")
	require.Nil(t, oom.Err, "the driver must not be asked beyond the limit")
	require.NoError(t, b.Free())
	mustAlloc(t, c, 512<<20-1, s)
	for _, f := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		require.ErrorIs(t, c.SetMemoryFraction(f), ErrInvalid)
		_, err := New(dev, Config{PerProcessMemoryFraction: f})
		require.ErrorIs(t, err, ErrInvalid)
	}
	require.NoError(t, c.SetMemoryFraction(1))
	mustAlloc(t, c, 1, s)
}

// TestRetry: after the first failure the cache flushes and tries again; a second failure is
// returned to the caller.
func TestRetry(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.NoError(t, mustAlloc(t, c, 30<<20, s).Free())
	dev.failures = 1
	mustAlloc(t, c, 40<<20, s)
	st := c.Stats()
	require.Equal(t, []int64{1, 1, 1, 0}, []int64{st.NumAllocRetries, st.NumSyncAllStreams, st.NumDeviceFree, st.NumOOMs})
	dev.failures = 2
	_, err := c.Alloc(context.Background(), 50<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	st = c.Stats()
	require.Equal(t, []int64{2, 2, 1}, []int64{st.NumAllocRetries, st.NumSyncAllStreams, st.NumOOMs})
	require.NoError(t, c.check())
	mustAlloc(t, c, 50<<20, s)
}

// TestSearchAfterFlush: a pending block that the flush completes, and that is a part of a segment,
// serves the request (PyTorch issue 189504). With Exact the request fails, as in PyTorch.
func TestSearchAfterFlush(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c, dev := newCache(t, Config{Exact: exact})
		s, other := dev.stream(1), dev.stream(2)
		a, b := mustAlloc(t, c, 8<<20, s), mustAlloc(t, c, 8<<20, s)
		other.busy = true
		require.NoError(t, errors.Join(a.RecordStream(other), a.Free()))
		dev.failures = 2
		again, err := c.Alloc(context.Background(), 8<<20, s)
		if exact {
			require.ErrorIs(t, err, ErrOutOfMemory)
		} else {
			require.NoError(t, err)
			require.Equal(t, a.Ptr(), again.Ptr())
		}
		require.NoError(t, b.Free())
	}
}

// TestPendingIsReclaimed fills a device with recorded blocks: pending memory must never be the
// reason of a failure.
func TestPendingIsReclaimed(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.99})
	s, other := dev.stream(1), dev.stream(2)
	for range 100 {
		other.busy = true
		b := mustAlloc(t, c, 160<<20, s)
		require.NoError(t, errors.Join(b.RecordStream(other), b.Free()))
	}
	require.Zero(t, c.Stats().NumOOMs)
	require.Positive(t, c.Stats().NumAllocRetries)
}

func TestReclaimers(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25})
	s := dev.stream(1)
	held := []Block{mustAlloc(t, c, 128<<20, s), mustAlloc(t, c, 128<<20, s)}
	var asked []int64
	idle := c.OnPressure(func(_ context.Context, need int64) int64 { asked = append(asked, need); return 0 })
	remove := c.OnPressure(func(_ context.Context, need int64) int64 {
		asked = append(asked, -need)
		if len(held) == 0 {
			return 0
		}
		b := held[0]
		held = held[1:]
		require.NoError(t, b.Free()) // no lock is held: the cache can be used
		return b.Size()
	})
	b := mustAlloc(t, c, 100<<20, s)
	require.Equal(t, []int64{100 << 20, -100 << 20}, asked)
	require.Zero(t, c.Stats().NumOOMs)
	_, err := c.Alloc(context.Background(), 200<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.EqualValues(t, 1, c.Stats().NumOOMs)
	idle()
	remove()
	asked = nil
	require.NoError(t, b.Free())
	_, err = c.Alloc(context.Background(), 1<<30, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Empty(t, asked)
}

// TestHitsGoOnWhileTheDriverHangs covers every stream, including the growing one.
func TestHitsGoOnWhileTheDriverHangs(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	require.NoError(t, errors.Join(mustAlloc(t, c, 1<<20, s).Free(), mustAlloc(t, c, 1<<20, other).Free()))
	entered, leave := make(chan struct{}), make(chan struct{})
	dev.hang = func() { entered <- struct{}{}; <-leave }
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := c.Alloc(context.Background(), 100<<20, s)
		require.NoError(t, err)
	})
	<-entered
	for _, s := range []device.Stream{s, other} {
		require.NoError(t, mustAlloc(t, c, 1<<20, s).Free())
	}
	c.Stats()

	// Another request that needs the driver waits its turn, and gives up with its context.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := c.Alloc(&lateContext{Context: ctx}, 100<<20, other)
	require.ErrorIs(t, err, context.Canceled)
	close(leave)
	dev.hang = nil
	wg.Wait()
	require.NoError(t, c.check())
}

// lateContext returns nil from the first call of Err, also after it has ended.
type lateContext struct {
	context.Context
	asked bool
}

func (c *lateContext) Err() error {
	if !c.asked {
		c.asked = true
		return nil
	}
	return c.Context.Err()
}

// TestFiguresOfAFailure: each figure of the error has its own value, and none is mistaken for
// another.
func TestFiguresOfAFailure(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 250 << 20})
	s, other, busy := dev.stream(1), dev.stream(2), dev.stream(3)
	mustAlloc(t, c, 30<<20, s)
	part := mustAlloc(t, c, 5<<20, s) // of 20 MiB
	mustAlloc(t, c, 2<<20, s)
	require.NoError(t, part.Free()) // free: 5 and 13 MiB
	mustAlloc(t, c, 3<<20, other)   // 17 free, of another stream
	mustAlloc(t, c, 1000, s)        // small
	busy.busy = true
	pending := mustAlloc(t, c, 40<<20, s)
	require.NoError(t, errors.Join(pending.RecordStream(busy), pending.Free()))
	first := true
	dev.gate = func(_ context.Context, call string) error {
		if call != "Synchronize" || !first {
			return nil
		}
		// A flush waits for the pending free; a failure before it has these figures.
		first = false
		var oom *OutOfMemoryError
		require.ErrorAs(t, c.grower.outOfMemory(&request{shard: c.shards.of(s), Want: placement.Want{Kind: placement.Large}}, nil), &oom)
		require.Equal(t, []int64{40 << 20, 35<<20 + 1024, 112 << 20}, []int64{oom.Pending, oom.Allocated, oom.Reserved})
		return nil
	}
	_, err := c.Alloc(t.Context(), 220<<20-1, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, OutOfMemoryError{
		Requested: 220<<20 - 1, Segment: 220 << 20, Device: "scripted", Total: 1 << 30, Free: 1<<30 - 72<<20, Limit: 250 << 20,
		Allocated: 35<<20 + 1024, Reserved: 72 << 20, Largest: 13 << 20, OtherStreams: 17 << 20, OtherSizes: 2<<20 - 1024,
		Advice: "memory_limit:306184192 (292.00 MiB) would have served it",
	}, *oom)
	require.ErrorContains(t, err, "37.00 MiB free")
}

// TestFailuresTogetherConcurrentSafe: each of several concurrent failures is counted. They meet in
// a reclaimer right before that.
func TestFailuresTogetherConcurrentSafe(t *testing.T) {
	const callers = 6
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	c, err := New(dev, Config{MemoryLimit: 1 << 20})
	require.NoError(t, err)
	var meet, all sync.WaitGroup
	meet.Add(callers)
	var once [callers]sync.Once
	type caller struct{}
	defer c.OnPressure(func(ctx context.Context, _ int64) int64 {
		once[ctx.Value(caller{}).(int)].Do(func() {
			meet.Done()
			meet.Wait()
		})
		return 0
	})()
	for i := range callers {
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		all.Go(func() {
			_, err := c.Alloc(context.WithValue(t.Context(), caller{}, i), 4<<20, s)
			assert.ErrorIs(t, err, ErrOutOfMemory)
		})
	}
	all.Wait()
	require.EqualValues(t, callers, c.Stats().NumOOMs)
	require.NoError(t, c.Close())
	require.NoError(t, dev.Close())
}
