package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// pattern returns n bytes with the prime period 65521, so that a misplaced chunk is detected.
func pattern(n int, seed byte) []byte {
	b := slices.Grow([]byte(nil), n)[:n]
	have := len(fill(b[:min(n, 65521)], seed))
	for i := range b[:have] {
		b[i] += byte(i >> 8)
	}
	for have < n {
		have += copy(b[have:], b[:have])
	}
	return b
}

// Data that several goroutines stage comes back unchanged, at sizes around the limits for one
// goroutine and for a Download in one buffer.
func TestLargeUploadDownload(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for _, n := range []int{2<<20 + 1, 32 << 20, 33<<20 + 12345} {
		block := r.alloc(t, int64(n)+7, r.a)
		src := pattern(n, byte(n>>4))
		c, err := r.pool.Upload(t.Context(), r.a, block, 7, src)
		require.NoError(t, err)
		require.EqualValues(t, n, c.Bytes())
		clear(src) // src may be reused
		got := make([]byte, n)
		require.NoError(t, r.pool.Download(t.Context(), r.a, got, block, 7))
		require.True(t, bytes.Equal(pattern(n, byte(n>>4)), got), "%d bytes", n)
		require.True(t, c.Done(), "the handle ends with the last byte")
		require.NoError(t, block.Free())
	}
	idle(t, r.pool)
}

// The events of large uploads are closed, although the copies are never queried.
func TestLargeUploadsCloseEvents(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds the garbage collector closes events")
	}
	r := newRig(t, transfer.Config{})
	dev := &eventCounter{Device: r.dev}
	p, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	block, data := r.alloc(t, 2<<20+1, r.a), make([]byte, 2<<20+1)
	for range 200 {
		_, err := p.Upload(t.Context(), r.a, block, 0, data)
		require.NoError(t, err)
		require.NoError(t, r.a.Synchronize(t.Context()))
	}
	require.Less(t, dev.open(), 150)
	require.NoError(t, p.Close())
	require.NoError(t, block.Free())
}

// canceller cancels a context when the n-th operation of one kind begins.
type canceller struct {
	op     transfer.Op
	left   atomic.Int64
	cancel func()
}

func (c *canceller) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	if op == c.op && c.left.Add(-1) == 0 {
		c.cancel()
	}
	return ctx, nil
}

// A transfer that is cancelled at any point returns the error and keeps no buffer.
func TestLargeCancelled(t *testing.T) {
	const n = 35<<20 + 1
	o := &canceller{}
	r := newRig(t, transfer.Config{Observer: o})
	block := r.alloc(t, n, r.a)
	data, got := pattern(n, 1), make([]byte, n)
	for _, at := range []int64{1, 2, 3, 9} {
		for _, op := range []transfer.Op{transfer.OpH2D, transfer.OpD2H} {
			ctx, cancel := context.WithCancel(t.Context())
			o.op, o.cancel = op, cancel
			o.left.Store(at)
			var err error
			if op == transfer.OpH2D {
				_, err = r.pool.Upload(ctx, r.a, block, 0, data)
			} else {
				err = r.pool.Download(ctx, r.a, got, block, 0)
			}
			require.ErrorIs(t, err, context.Canceled, "%v %d", op, at)
			require.ErrorContains(t, err, fmt.Sprintf("of %d bytes", n))
			idle(t, r.pool)
		}
	}
	// It does not affect the next one.
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, data)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, r.read(t, r.a, block)[:n]))
	require.NoError(t, block.Free())
}

// While the stream is stuck, a Download of any size ends with its context, and leaves a small dst
// unchanged.
func TestLargeCancelledWhileWaiting(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 33<<20, r.a)
	for _, n := range []int{4 << 20, 33 << 20} {
		open := cisterntest.Hold(t, r.a)
		ctx, cancel := context.WithCancel(t.Context())
		got, failed := make([]byte, n), make(chan error)
		before := r.pool.Stats().D2HCopies
		go func() { failed <- r.pool.Download(ctx, r.a, got, block, 0) }()
		cisterntest.WaitFor(t, func() bool { return r.pool.Stats().D2HCopies > before })
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		require.True(t, bytes.Equal(make([]byte, n), got), "nothing had come")
		require.Zero(t, r.pool.Stats().ActiveRequests.Current)
		open()
		require.NoError(t, r.a.Synchronize(t.Context()))
	}
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	idle(t, r.pool)
}

// If a device fails during the transfer, or a pool may not hold enough, the call returns an error
// and every buffer is given back.
func TestLargeFailures(t *testing.T) {
	const n = 9<<20 + 1
	for _, at := range []int{1, 2, 5} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprint("copy ", at, " ", up), func(t *testing.T) {
				r := newRig(t, transfer.Config{})
				dev := r.host(t)
				block := r.alloc(t, 33<<20, r.a)
				dev.Fail(host.FaultCopy, at)
				r.Faulted = true
				var err error
				if up {
					var c *transfer.Copy
					if c, err = r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, n)); err == nil {
						err = c.Wait(t.Context())
					}
				} else {
					err = r.pool.Download(t.Context(), r.a, make([]byte, 33<<20), block, 0)
				}
				require.ErrorIs(t, err, device.ErrSticky)
				require.Zero(t, r.pool.Stats().ActiveRequests.Current)
			})
		}
	}
	r := newRig(t, transfer.Config{MaxBytes: 3 << 20})
	block := r.alloc(t, n, r.a)
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, n))
	require.ErrorIs(t, err, transfer.ErrLimit)
	require.ErrorIs(t, r.pool.Download(t.Context(), r.a, make([]byte, n), block, 0), transfer.ErrLimit)
	idle(t, r.pool)
	require.NoError(t, block.Free())
}

// The statistics have PyTorch's names and units.
func TestStatsMap(t *testing.T) {
	stat := func(n int64) memcache.Stat {
		return memcache.Stat{Current: n, Peak: n + 1, Allocated: n + 2, Freed: n + 3}
	}
	us := time.Microsecond
	st := transfer.Stats{
		Allocations: stat(10), AllocatedBytes: stat(20), ActiveRequests: stat(30), ActiveBytes: stat(40), HostAllocs: 2, HostFrees: 3,
		HostAllocTime: transfer.DurationStat{Count: 2, Total: 9 * us, Min: 3 * us, Max: 6 * us},
	}
	want := map[string]int64{
		"num_host_alloc": 2, "num_host_free": 3,
		"host_alloc_time.total": 9, "host_alloc_time.count": 2, "host_alloc_time.min": 3, "host_alloc_time.max": 6, "host_alloc_time.avg": 4,
		"host_free_time.total": 0, "host_free_time.count": 0, "host_free_time.min": 0, "host_free_time.max": 0, "host_free_time.avg": 0,
	}
	for i, name := range []string{"allocations", "allocated_bytes", "active_requests", "active_bytes"} {
		for k, field := range []string{"current", "peak", "allocated", "freed"} {
			want[name+"."+field] = int64(10*(i+1) + k)
		}
	}
	require.Equal(t, want, st.Map())

	r := newRig(t, transfer.Config{})
	a, b := r.get(t, 1000), r.get(t, 1000)
	require.NoError(t, b.Release())
	m := r.pool.Stats().Map()
	for name, want := range map[string]int64{
		"allocations.current": 2, "allocated_bytes.current": 2048, "active_requests.current": 1, "active_requests.peak": 2,
		"active_bytes.current": 1024, "active_bytes.freed": 1024, "num_host_alloc": 2, "num_host_free": 0, "host_alloc_time.count": 2,
	} {
		require.Equal(t, want, m[name], name)
	}
	require.NoError(t, a.Release())
}
