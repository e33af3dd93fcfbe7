package transfer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// A Get over MaxBytes frees cached memory, and fails with the sizes if that does not suffice.
func TestLimit(t *testing.T) {
	_, err := transfer.New(inert{}, transfer.Config{MaxBytes: -1})
	require.ErrorIs(t, err, transfer.ErrRange)
	r := newRig(t, transfer.Config{MaxBytes: 10 << 10})
	a, b := r.get(t, 4<<10), r.get(t, 4<<10)
	_, err = r.pool.Get(t.Context(), 3000) // 3,072
	require.ErrorIs(t, err, transfer.ErrLimit)
	var limit *transfer.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, transfer.LimitError{Requested: 3 << 10, Allocated: 8 << 10, Limit: 10 << 10}, *limit)
	require.ErrorContains(t, err, "3.0 KiB more than the 8.0 KiB held would be over 10 KiB; Release buffers, or raise MaxBytes")
	idleExcept(t, r.pool, 2)
	require.NoError(t, b.Release())
	c := r.get(t, 3000) // frees b's memory
	require.EqualValues(t, 7<<10, r.pool.Stats().AllocatedBytes.Current)
	d := r.get(t, 3<<10) // reaches the limit
	_, err = r.pool.Get(t.Context(), 1)
	require.ErrorIs(t, err, transfer.ErrLimit)
	require.NoError(t, c.Release())
	e := r.get(t, 3000)
	require.EqualValues(t, 1, r.pool.Stats().Hits, "what is cached needs no room")
	_, err = r.pool.Get(t.Context(), 1<<46)
	require.ErrorIs(t, err, transfer.ErrLimit, "far too large")
	for _, buf := range []transfer.Buffer{a, d, e} {
		require.NoError(t, buf.Release())
	}
	idle(t, r.pool)
}

// A Get over MaxBytes waits for the copies of released buffers.
func TestLimitWaitsForCopies(t *testing.T) {
	r := newRig(t, transfer.Config{MaxBytes: 4 << 10})
	block := r.alloc(t, 4<<10, r.a)
	open := cisterntest.Hold(t, r.a)
	b := r.get(t, 4<<10)
	fill(b.Bytes(), 1)
	_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 4<<10)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	_, err = r.pool.Get(cancelled(), 512)
	require.ErrorIs(t, err, cancelled().Err())
	got := make(chan error, 1)
	go func() {
		b, err := r.pool.Get(t.Context(), 512)
		if err == nil {
			err = b.Release()
		}
		got <- err
	}()
	cisterntest.WaitFor(t, func() bool { return r.pool.Stats().Pending == 1 })
	select {
	case err := <-got:
		t.Fatal("it did not wait", err)
	default:
	}
	open()
	require.NoError(t, <-got)
	require.Equal(t, fill(make([]byte, 4<<10), 1), r.read(t, r.a, block))
	require.NoError(t, block.Free())
}

// slow is a device whose driver calls for pinned memory last until open is closed.
type slow struct {
	device.Device
	calls atomic.Int64
	open  chan struct{}
}

func (d *slow) AllocPinned(bytes int64) ([]byte, error) {
	d.calls.Add(1)
	<-d.open
	return d.Device.AllocPinned(bytes)
}

// Memory that the driver is still allocating counts too.
func TestLimitCountsWhatIsOnItsWay(t *testing.T) {
	r := newRig(t, transfer.Config{})
	dev := &slow{Device: r.dev, open: make(chan struct{})}
	p, err := transfer.New(dev, transfer.Config{MaxBytes: 4 << 10})
	require.NoError(t, err)
	got := make(chan transfer.Buffer, 1)
	go func() {
		b, err := p.Get(t.Context(), 3<<10)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	cisterntest.WaitFor(t, func() bool { return dev.calls.Load() == 1 })
	large := make(chan error, 1)
	go func() {
		b, err := p.Get(t.Context(), 2<<10)
		large <- errors.Join(err, b.Release())
	}()
	fits := make(chan error, 1)
	go func() {
		b, err := p.Get(t.Context(), 1<<10)
		fits <- errors.Join(err, b.Release())
	}()
	cisterntest.WaitFor(t, func() bool { return dev.calls.Load() == 2 && len(large) == 1 || dev.calls.Load() == 3 })
	close(dev.open)
	var limit *transfer.LimitError
	require.ErrorAs(t, <-large, &limit)
	require.GreaterOrEqual(t, limit.Allocated, int64(3<<10))
	require.NoError(t, <-fits)
	require.NoError(t, (<-got).Release())
	require.LessOrEqual(t, p.Stats().AllocatedBytes.Peak, int64(4<<10))
	require.NoError(t, p.Close())
}

// idleExcept checks the statistics of a pool with n buffers out.
func idleExcept(t testing.TB, p *transfer.Pool, n int64) {
	t.Helper()
	st := p.Stats()
	require.Equal(t, n, st.ActiveRequests.Current)
	require.Equal(t, st.AllocatedBytes.Current, st.ActiveBytes.Current+st.CachedBytes.Current)
}

// After any use by many goroutines, the cache is within its limits of bytes and buffers, and as
// full as these allow.
func TestLimitsUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name            string
		cfg             transfer.Config
		cached, buffers int64 // at rest; 0: whatever is less
	}{
		{"budget", transfer.Config{MaxCachedBytes: 20 << 10}, 20 << 10, 20},
		{"buffers", transfer.Config{MaxCachedBuffers: 13}, 13 << 10, 13},
		{"both", transfer.Config{MaxCachedBuffers: 21, MaxCachedBytes: 19<<10 + 1}, 19 << 10, 19},
		{"none", transfer.Config{MaxCachedBytes: -1}, 0, 0},
		{"no buffers", transfer.Config{MaxCachedBuffers: -1}, 0, 0},
		{"limit", transfer.Config{MaxBytes: 33 << 10}, 33 << 10, 33},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.cfg)
			for range 5 {
				var wg sync.WaitGroup
				for range 16 {
					wg.Go(func() {
						for i := range 30 {
							bufs := make([]transfer.Buffer, 0, 4)
							for range 1 + i%4 {
								b, err := r.pool.Get(t.Context(), 1000)
								if err != nil && c.cfg.MaxBytes == 0 {
									t.Error(err)
								}
								bufs = append(bufs, b)
							}
							if st := r.pool.Stats(); c.cfg.MaxBytes > 0 && st.AllocatedBytes.Peak > c.cfg.MaxBytes {
								t.Error("over the limit:", st.AllocatedBytes.Peak)
							}
							for _, b := range bufs {
								if err := b.Release(); err != nil {
									t.Error(err)
								}
							}
						}
					})
				}
				wg.Wait()
				var bufs []transfer.Buffer
				for range 33 { // so that the cache is full
					bufs = append(bufs, r.get(t, 1000))
				}
				for _, b := range bufs {
					require.NoError(t, b.Release())
				}
				idle(t, r.pool)
				st := r.pool.Stats()
				if c.name == "limit" || c.cached > 0 {
					require.Equal(t, c.cached, st.CachedBytes.Current)
				}
				require.LessOrEqual(t, st.Allocations.Current, c.buffers)
			}
		})
	}
}
