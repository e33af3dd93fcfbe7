package transfer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

func TestCopyBothWays(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 1<<10, r.a)
	src, dst := r.get(t, 1<<10), r.get(t, 1<<10)
	v, err := transfer.As[uint32](src)
	require.NoError(t, err)
	for i := range v {
		v[i] = uint32(i)
	}
	up, err := r.pool.H2D(t.Context(), r.a, block, 0, src, 0, 1<<10)
	require.NoError(t, err)
	require.NoError(t, src.Release())
	down, err := r.pool.D2H(t.Context(), r.a, dst, 400, block, 40, 80)
	require.NoError(t, err)
	require.NoError(t, block.Free())
	require.NoError(t, down.Wait(t.Context()))
	require.True(t, up.Done())
	require.NoError(t, up.Err())
	require.EqualValues(t, 80, down.Bytes())
	got, err := transfer.As[uint32](dst)
	require.NoError(t, err)
	for i := range 20 {
		require.EqualValues(t, 10+i, got[100+i])
	}
	require.NoError(t, dst.Wait(t.Context()))
	require.NoError(t, dst.Release())
	st := r.pool.Stats()
	require.Equal(t, [4]int64{1, 1024, 1, 80}, [4]int64{st.H2DCopies, st.H2DBytes, st.D2HCopies, st.D2HBytes})
}

// The block of a pending copy is not reused after its free, although only the pool recorded the
// stream.
func TestCopyRecordsItsStream(t *testing.T) {
	for _, upload := range []bool{false, true} {
		r := newRig(t, transfer.Config{})
		block := r.alloc(t, 1<<10, r.a)
		open := cisterntest.Hold(t, r.b)
		b := r.get(t, 1<<10)
		fill(b.Bytes(), 7)
		var err error
		if upload {
			_, err = r.pool.H2D(t.Context(), r.b, block, 0, b, 0, 1<<10)
		} else {
			_, err = r.pool.D2H(t.Context(), r.b, b, 0, block, 0, 1<<10)
		}
		require.NoError(t, err)
		require.NoError(t, b.Release())
		require.NoError(t, block.Free())
		next := r.alloc(t, 1<<10, r.a)
		require.NotEqual(t, block.Ptr(), next.Ptr(), "handed out under a copy")
		require.NoError(t, r.a.Memset(next.Ptr(), 1, 1<<10))
		open()
		require.NoError(t, next.Free())
	}
}

// A buffer that one stream writes and another reads needs no event of the caller.
func TestCopiesOfOneBufferAreOrdered(t *testing.T) {
	r := newRig(t, transfer.Config{})
	from, to := r.alloc(t, 1<<10, r.a), r.alloc(t, 1<<10, r.b)
	want := fill(make([]byte, 1<<10), 3)
	_, err := r.pool.Upload(t.Context(), r.a, from, 0, want)
	require.NoError(t, err)
	b := r.get(t, 1<<10)
	open := cisterntest.Hold(t, r.a)
	_, err = r.pool.D2H(t.Context(), r.a, b, 0, from, 0, 1<<10)
	require.NoError(t, err)
	_, err = r.pool.H2D(t.Context(), r.b, to, 0, b, 0, 1<<10)
	require.NoError(t, err)
	_, err = r.pool.D2H(t.Context(), r.a, b, 0, from, 0, 1<<9) // overwrites what b's stream reads
	require.NoError(t, err)
	require.NoError(t, b.Release())
	done, err := r.b.Query()
	require.NoError(t, err)
	require.False(t, done)
	open()
	got := make([]byte, 1<<10)
	require.NoError(t, r.pool.Download(t.Context(), r.b, got, to, 0))
	require.Equal(t, want, got)
	require.NoError(t, from.Free())
	require.NoError(t, to.Free())
}

func FuzzRanges(f *testing.F) {
	r := newRig(f, transfer.Config{})
	block, err := r.cache.Alloc(f.Context(), 1024, r.a)
	require.NoError(f, err)
	b := r.get(f, 1000)
	f.Cleanup(func() {
		require.NoError(f, b.Release())
		require.NoError(f, block.Free())
	})
	f.Add(int64(0), int64(0), int64(1000))
	f.Add(int64(24), int64(0), int64(1000))
	f.Add(int64(25), int64(0), int64(1000))
	f.Add(int64(-1), int64(1), int64(1))
	f.Add(int64(1), int64(1), int64(-1))
	f.Add(int64(math.MaxInt64), int64(1), int64(math.MaxInt64))
	f.Add(int64(1), int64(math.MaxInt64), int64(-1))
	f.Add(int64(1024), int64(1000), int64(0))
	f.Fuzz(func(t *testing.T, blockOffset, bufferOffset, bytes int64) {
		inside := blockOffset >= 0 && bufferOffset >= 0 && bytes >= 0 &&
			blockOffset <= 1024 && bufferOffset <= 1000 && bytes <= 1000 &&
			blockOffset+bytes <= 1024 && bufferOffset+bytes <= 1000
		for _, h2d := range []bool{true, false} {
			before := r.pool.Stats()
			var c *transfer.Copy
			var err error
			if h2d {
				c, err = r.pool.H2D(t.Context(), r.a, block, blockOffset, b, bufferOffset, bytes)
			} else {
				c, err = r.pool.D2H(t.Context(), r.a, b, bufferOffset, block, blockOffset, bytes)
			}
			if !inside {
				require.ErrorIs(t, err, transfer.ErrRange)
				require.Equal(t, before, r.pool.Stats())
				continue
			}
			require.NoError(t, err)
			require.NoError(t, c.Wait(t.Context()))
		}
	})
}

// A copy that fails on the device returns the error, and all memory is still given back.
func TestCopyFaults(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.Faulted = true
	block := r.alloc(t, 1<<10, r.a)
	r.host(t).Fail(host.FaultCopy, 2)
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 1<<10))
	require.NoError(t, err)
	dst := fill(make([]byte, 1<<10), 5)
	require.ErrorIs(t, r.pool.Download(t.Context(), r.a, dst, block, 0), device.ErrSticky)
	require.Equal(t, fill(make([]byte, 1<<10), 5), dst)
	_, err = r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 1<<10))
	require.ErrorIs(t, err, device.ErrSticky)
	require.Zero(t, r.pool.Stats().ActiveRequests.Current)
}
