package transfer_test

import (
	"context"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func address(b transfer.Buffer) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))) }

func TestPoolReuses(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 1000)
	require.Equal(t, 1000, b.Len())
	require.Len(t, b.Bytes(), 1000)
	first := address(b)
	require.NoError(t, b.Release())
	require.Nil(t, b.Bytes())
	c := r.get(t, 1020) // the same class
	require.Equal(t, first, address(c))
	st := r.pool.Stats()
	require.Equal(t, memcache.Stat{Current: 1024, Peak: 1024, Allocated: 1024}, st.AllocatedBytes)
	require.Equal(t, memcache.Stat{Current: 1020, Peak: 1020, Allocated: 2020, Freed: 1000}, st.RequestedBytes)
	require.EqualValues(t, 1, st.Hits)
	require.EqualValues(t, 1, st.Misses)
	require.NoError(t, c.Release())
	require.ErrorIs(t, c.Release(), transfer.ErrReleased)
	require.ErrorIs(t, b.Release(), transfer.ErrReleased, "the first owner's handle stays stale")
	_, err := transfer.As[float32](b)
	require.ErrorIs(t, err, transfer.ErrReleased)
}

// A buffer in flight is neither accessible nor reused, and one slow stream delays no other.
func TestReuseWaitsForTheCopy(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 4096, r.a)
	open := cisterntest.Hold(t, r.a)

	slow := r.get(t, 4096)
	memory := address(slow)
	fill(slow.Bytes(), 1)
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, slow, 0, 4096)
	require.NoError(t, err)
	require.Nil(t, slow.Bytes())
	require.ErrorIs(t, slow.Check(), transfer.ErrInFlight)
	_, err = transfer.As[float32](slow)
	require.ErrorIs(t, err, transfer.ErrInFlight)
	require.NoError(t, slow.Release())
	require.EqualValues(t, 1, r.pool.Stats().Pending)

	quick := r.get(t, 4096)
	require.NotEqual(t, memory, address(quick), "handed out under a copy")
	quickMemory := address(quick)
	fill(quick.Bytes(), 99)
	other := r.alloc(t, 4096, r.b)
	d, err := r.pool.H2D(t.Context(), r.b, other, 0, quick, 0, 4096)
	require.NoError(t, err)
	require.NoError(t, d.Wait(t.Context()))
	require.NoError(t, quick.Release())
	again := r.get(t, 4096)
	require.Equal(t, quickMemory, address(again), "held up by another stream's copy")
	fill(again.Bytes(), 77)

	require.False(t, c.Done())
	open()
	require.NoError(t, c.Wait(t.Context()))
	got := make([]byte, 4096)
	require.NoError(t, r.pool.Download(t.Context(), r.a, got, block, 0))
	require.Equal(t, fill(make([]byte, 4096), 1), got)
	require.NoError(t, again.Release())
	require.NoError(t, block.Free())
	require.NoError(t, other.Free())
}

// A mistake that the pool must not make, in a form that only the race detector finds: the next
// owner writes while an earlier copy reads.
func TestReuseUnderRaceDetector(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 1<<16, r.a)
	for i := 0; r.pool.Stats().Hits < 20; i++ {
		b := r.get(t, 1<<16)
		fill(b.Bytes()[:64], byte(i))
		_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 1<<16)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		time.Sleep(time.Duration(i%2) * 100 * time.Microsecond)
	}
	require.NoError(t, block.Free())
}

func TestBudget(t *testing.T) {
	r := newRig(t, transfer.Config{MaxCachedBytes: 3 << 20})
	var bufs []transfer.Buffer
	for range 4 {
		bufs = append(bufs, r.get(t, 1<<20))
	}
	oldest := address(bufs[0])
	for _, b := range bufs {
		require.NoError(t, b.Release())
	}
	st := r.pool.Stats()
	require.EqualValues(t, 3<<20, st.CachedBytes.Current)
	require.EqualValues(t, 1, st.HostFrees)
	for range 3 {
		b := r.get(t, 1<<20)
		require.NotEqual(t, oldest, address(b), "not the least recently used one went")
		bufs = append(bufs, b)
	}
	for _, b := range bufs[4:] {
		require.NoError(t, b.Release())
	}

	none := newRig(t, transfer.Config{MaxCachedBytes: -1})
	require.NoError(t, none.get(t, 100).Release())
	require.Zero(t, none.pool.Stats().AllocatedBytes.Current)
}

// Memory over the budget that a copy uses is freed when the copy is done.
func TestBudgetOfPending(t *testing.T) {
	r := newRig(t, transfer.Config{MaxCachedBytes: -1})
	block := r.alloc(t, 512, r.a)
	open := cisterntest.Hold(t, r.a)
	b := r.get(t, 512)
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 512)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	st := r.pool.Stats()
	require.Equal(t, [2]int64{512, 0}, [2]int64{st.ActiveBytes.Current, st.CachedBytes.Current})
	open()
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, r.get(t, 64).Release())
	require.Zero(t, r.pool.Stats().AllocatedBytes.Current)
	require.NoError(t, block.Free())
}

// A buffer with copies on several streams is idle after the last of them.
func TestIdleAfterAllCopies(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for _, held := range []device.Stream{r.a, r.b} {
		block := r.alloc(t, 64, r.a)
		b := r.get(t, 64)
		open := cisterntest.Hold(t, held)
		for _, s := range []device.Stream{r.a, r.b} {
			_, err := r.pool.H2D(t.Context(), s, block, 0, b, 0, 64)
			require.NoError(t, err)
		}
		require.NoError(t, b.Release())
		other := r.a
		if held == r.a {
			other = r.b
		}
		require.NoError(t, other.Synchronize(t.Context()))
		misses := r.pool.Stats().Misses
		require.EqualValues(t, 1, r.pool.Stats().Pending)
		next := r.get(t, 64)
		require.Equal(t, misses+1, r.pool.Stats().Misses, "handed out under a copy")
		open()
		require.NoError(t, held.Synchronize(t.Context()))
		require.Zero(t, r.pool.Stats().Pending)
		require.NoError(t, next.Release())
		require.NoError(t, r.pool.EmptyCache(t.Context()))
		require.NoError(t, block.Free())
	}
}

// Buffers may be released in another order than their copies': each is idle when its own are done.
func TestReleasedInAnotherOrder(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	first, second := r.get(t, 64), r.get(t, 64)
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, first, 0, 64)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, second, 0, 64)
	require.NoError(t, err)
	require.NoError(t, second.Release())
	require.NoError(t, first.Release())
	require.NoError(t, c.Wait(t.Context()))
	require.EqualValues(t, 1, r.pool.Stats().Pending)
	open()
	require.NoError(t, r.a.Synchronize(t.Context()))
	require.Zero(t, r.pool.Stats().Pending)
	require.NoError(t, block.Free())
}

func TestEmptyCache(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	open := cisterntest.Hold(t, r.a)
	b := r.get(t, 512)
	_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 512)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	require.NoError(t, r.get(t, 5000).Release())
	kept := r.get(t, 300)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.pool.EmptyCache(ctx) }()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	open()
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	st := r.pool.Stats()
	require.Zero(t, st.CachedBytes.Current)
	require.EqualValues(t, 1, st.Allocations.Current)
	require.NoError(t, kept.Release())
	require.NoError(t, block.Free())
}

func TestZeroBytesTouchNothing(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 0)
	require.Zero(t, b.Len())
	v, err := transfer.As[float64](b)
	require.NoError(t, err)
	require.Empty(t, v)
	for _, op := range []func() (*transfer.Copy, error){
		func() (*transfer.Copy, error) {
			return r.pool.H2D(t.Context(), r.a, memcache.Block{}, 0, b, 0, 0)
		},
		func() (*transfer.Copy, error) {
			return r.pool.D2H(t.Context(), r.a, b, 0, memcache.Block{}, 0, 0)
		},
		func() (*transfer.Copy, error) { return r.pool.Upload(t.Context(), r.a, memcache.Block{}, 0, nil) },
	} {
		c, err := op()
		require.NoError(t, err)
		require.True(t, c.Done())
		require.NoError(t, c.Wait(t.Context()))
	}
	require.NoError(t, r.pool.Download(t.Context(), r.a, nil, memcache.Block{}, 0))
	require.True(t, b.IsZero())
	require.NoError(t, b.Release())
	require.NoError(t, b.Release(), "the empty buffer is nobody's")
	require.Zero(t, r.pool.Stats())
}

func TestBadArguments(t *testing.T) {
	_, err := transfer.New(nil, transfer.Config{})
	require.ErrorIs(t, err, transfer.ErrInvalid)
	r := newRig(t, transfer.Config{})
	r.host(t) // another rig has another device
	other := newRig(t, transfer.Config{})
	for _, n := range []int64{-1, 1 << 47, -1 << 63, 1<<63 - 1} {
		_, err := r.pool.Get(t.Context(), n)
		require.ErrorIs(t, err, transfer.ErrRange)
	}
	b, foreign, block := r.get(t, 100), other.get(t, 100), r.alloc(t, 100, r.a)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, foreign, 0, 10)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, transfer.Buffer{}, 0, 10)
	require.ErrorIs(t, err, transfer.ErrRange)
	_, err = r.pool.H2D(t.Context(), nil, block, 0, b, 0, 10)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	_, err = r.pool.H2D(t.Context(), other.a, block, 0, b, 0, 10)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.ErrorContains(t, err, "want a stream of the pool's device")
	_, err = r.pool.Upload(t.Context(), other.a, block, 0, make([]byte, 10))
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.ErrorContains(t, err, "want a stream of the pool's device")
	require.ErrorIs(t, r.pool.Download(t.Context(), nil, make([]byte, 10), block, 0), transfer.ErrInvalid)
	_, err = transfer.As[float64](b)
	require.ErrorIs(t, err, transfer.ErrRange, "100 bytes are no whole number of float64")
	_, err = transfer.View[float64](b.Bytes()[1:9])
	require.ErrorIs(t, err, transfer.ErrRange, "misaligned")
	require.NoError(t, b.Release())
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 10)
	require.ErrorIs(t, err, transfer.ErrReleased)
	require.NoError(t, block.Free())
	b = r.get(t, 100)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 10)
	require.ErrorIs(t, err, memcache.ErrFreed)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.pool.Get(cancelled, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, b.Release())
	require.NoError(t, foreign.Release())
	st := r.pool.Stats()
	require.Zero(t, st.H2DCopies+st.D2HCopies)
}

func TestCloseReportsWhatIsOut(t *testing.T) {
	dev := cisterntest.Host(t, 0)
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	b, err := pool.Get(t.Context(), 1000)
	require.NoError(t, err)
	c, err := pool.Get(t.Context(), 1000)
	require.NoError(t, err)
	require.NoError(t, c.Release())
	err = pool.Close()
	require.ErrorContains(t, err, "1 buffers of 1000 B out")
	require.Equal(t, err, pool.Close())
	require.Nil(t, b.Bytes())
	require.ErrorIs(t, b.Check(), transfer.ErrClosed)
	require.ErrorIs(t, b.Release(), transfer.ErrClosed)
	for _, n := range []int64{0, 1, 1000} {
		_, err = pool.Get(t.Context(), n)
		require.ErrorIs(t, err, transfer.ErrClosed)
	}
	require.ErrorIs(t, pool.EmptyCache(t.Context()), transfer.ErrClosed)
	st := pool.Stats()
	for _, stat := range []memcache.Stat{st.Allocations, st.AllocatedBytes, st.HeldBytes, st.ActiveRequests, st.ActiveBytes,
		st.RequestedBytes, st.CachedBytes} {
		require.Zero(t, stat.Current)
		require.Positive(t, stat.Peak)
		require.Equal(t, stat.Allocated, stat.Freed)
	}
	require.NoError(t, dev.Close())
}

// Close waits for copies, of buffers that are released and of buffers that are out.
func TestCloseWaits(t *testing.T) {
	dev := cisterntest.Host(t, 0)
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	block, err := cache.Alloc(t.Context(), 1000, s)
	require.NoError(t, err)
	open := cisterntest.Hold(t, s)
	out, err := pool.Get(t.Context(), 1000)
	require.NoError(t, err)
	c, err := pool.H2D(t.Context(), s, block, 0, out, 0, 1000)
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- pool.Close() }()
	select {
	case <-closed:
		t.Fatal("Close did not wait for the copy")
	default:
	}
	open()
	require.Error(t, <-closed)
	require.True(t, c.Done())
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, block.Free())
	require.NoError(t, s.Close())
	require.NoError(t, cache.Close())
	require.NoError(t, dev.Close())
}

// When the driver has no more memory, the pool frees its cached memory and tries again.
func TestOutOfPinnedMemory(t *testing.T) {
	r := newRig(t, transfer.Config{})
	require.NoError(t, r.get(t, 1<<20).Release())
	r.host(t).Fail(host.FaultPinned, 1)
	b := r.get(t, 2<<20)
	st := r.pool.Stats()
	require.Zero(t, st.CachedBytes.Current)
	require.EqualValues(t, 3, st.HostAllocs)
	require.EqualValues(t, 1, st.HostFrees)
	require.NoError(t, b.Release())
	_, err := r.pool.Get(t.Context(), 1<<45)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
}

func TestPoolConcurrentSafe(t *testing.T) {
	r := newRig(t, transfer.Config{MaxCachedBytes: 1 << 20})
	streams := []device.Stream{r.a, r.b}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			s := streams[g%2]
			block, err := r.cache.Alloc(t.Context(), 64<<10, s)
			if err != nil {
				t.Error(err)
				return
			}
			defer block.Free()
			for i := range 60 {
				n := int64(1 + (g*7919+i*104729)%(64<<10))
				want := fill(make([]byte, n), byte(g*i))
				if _, err := r.pool.Upload(t.Context(), s, block, 0, want); err != nil {
					t.Error(err)
				}
				got := make([]byte, n)
				if err := r.pool.Download(t.Context(), s, got, block, 0); err != nil {
					t.Error(err)
				}
				if string(got) != string(want) {
					t.Errorf("goroutine %d: %d bytes came back wrong", g, n)
				}
				if i%20 == 0 {
					if err := r.pool.EmptyCache(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}
