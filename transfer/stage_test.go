package transfer_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// Uploaded data comes back unchanged, at sizes around the chunks', and src may be reused at once.
func TestUploadDownload(t *testing.T) {
	r := newRig(t, transfer.Config{})
	const chunk = 4 << 20
	for _, n := range []int{1, 7, 512, chunk - 1, chunk, chunk + 1, 3 * chunk, 5*chunk + 12345} {
		block := r.alloc(t, int64(n)+3, r.b)
		src := fill(make([]byte, n), byte(n))
		// The block is allocated on r.b, which may still be filling memory that was freed before
		// (builds with invariants do).
		require.NoError(t, r.b.Synchronize(t.Context()))
		c, err := r.pool.Upload(t.Context(), r.a, block, 3, src)
		require.NoError(t, err)
		require.EqualValues(t, n, c.Bytes())
		clear(src)
		got := make([]byte, n)
		require.NoError(t, r.pool.Download(t.Context(), r.a, got, block, 3))
		require.Equal(t, fill(src, byte(n)), got)
		require.NoError(t, block.Free())
	}
	require.Zero(t, r.pool.Stats().ActiveRequests.Current)
}

// TestStagesAreNoMoreThanTheirChunks: 4 MiB are two chunks, which two goroutines copy with two buffers
// each, however many processors there are.
func TestStagesAreNoMoreThanTheirChunks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 4<<20, r.a)
	c, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 4<<20))
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.LessOrEqual(t, r.pool.Stats().AllocatedBytes.Peak, int64(8<<20))
	require.NoError(t, block.Free())
}

func TestStageErrorsLeaveDstAlone(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	untouched := fill(make([]byte, 513), 9)
	dst := fill(make([]byte, 513), 9)
	require.ErrorIs(t, r.pool.Download(t.Context(), r.a, dst, block, 0), transfer.ErrRange)
	require.ErrorIs(t, r.pool.Download(t.Context(), r.a, dst[:1], block, -1), transfer.ErrRange)
	_, err := r.pool.Upload(t.Context(), r.a, block, 500, dst[:13])
	require.ErrorIs(t, err, transfer.ErrRange)
	require.ErrorContains(t, err, "13 bytes at offset 500 of block")
	_, err = r.pool.Upload(t.Context(), nil, block, 0, nil)
	require.ErrorIs(t, err, device.ErrInvalid, "no bytes need a stream too")

	open := cisterntest.Hold(t, r.a)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- r.pool.Download(ctx, r.a, dst[:512], block, 0) }()
	for r.pool.Stats().D2HCopies == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	open()
	require.Equal(t, untouched, dst)

	// An upload that is cancelled while it runs keeps no buffer.
	big := r.alloc(t, 32<<20, r.b)
	open = cisterntest.Hold(t, r.b)
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := r.pool.Upload(ctx, r.b, big, 0, make([]byte, 32<<20))
		failed <- err
	}()
	for r.pool.Stats().H2DCopies < 2 { // both buffers of a stager
		time.Sleep(time.Millisecond)
	}
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.Zero(t, r.pool.Stats().ActiveRequests.Current)
	open()
	require.NoError(t, block.Free())
	require.NoError(t, big.Free())
	require.NoError(t, errors.Join(r.a.Synchronize(t.Context()), r.b.Synchronize(t.Context())))
}
