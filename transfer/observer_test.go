package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/transfer"
)

func TestObserver(t *testing.T) {
	rec := &stacktest.Recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	block := r.alloc(t, 1<<10, r.a)
	open := cisterntest.Hold(t, r.a)
	src := r.get(t, 1<<10)
	up, err := r.pool.H2D(t.Context(), r.a, block, 0, src, 0, 1000)
	require.NoError(t, err)
	down, err := r.pool.D2H(t.Context(), r.a, src, 0, block, 0, 24)
	require.NoError(t, err)
	_, err = r.pool.D2H(stacktest.Unobserved(t.Context()), r.a, src, 0, block, 0, 24)
	require.NoError(t, err)
	require.Empty(t, rec.Of(transfer.OpH2D), "a copy ended before the device finished it")
	open()
	require.NoError(t, errors.Join(up.Wait(t.Context()), down.Wait(t.Context()), src.Release(), r.pool.Close()))
	require.Zero(t, rec.Open())
	ups, downs := rec.Of(transfer.OpH2D), rec.Of(transfer.OpD2H)
	require.Len(t, ups, 1)
	require.Len(t, downs, 1)
	e := ups[0]
	require.False(t, e.Done.Before(e.Queued))
	require.Positive(t, e.Busy)
	require.LessOrEqual(t, e.Busy, e.Done.Sub(e.Queued), "the copy ran between the two")
	e.Done, e.Queued, e.Busy = downs[0].Done, downs[0].Queued, 0
	require.Equal(t, transfer.OpInfo{
		Op: transfer.OpH2D, Device: r.dev.Name(), Stream: r.a.ID(), Serial: block.Serial(), Bytes: 1000,
		Done: e.Done, Queued: e.Queued,
	}, e)
	allocs, frees := rec.Of(transfer.OpPinnedAlloc), rec.Of(transfer.OpPinnedFree)
	require.Len(t, allocs, 1)
	require.Len(t, frees, 1)
	require.EqualValues(t, 1024, allocs[0].Bytes)
	require.Equal(t, "h2d d2h d2d fill batch launch pinned_alloc pinned_free register unregister next unknown", func() (s string) {
		for op := range transfer.OpNext + 2 {
			s += op.String() + " "
		}
		return s[:len(s)-1]
	}())
	require.NoError(t, block.Free())
}

func TestObserverOfFaults(t *testing.T) {
	rec := &stacktest.Recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	r.Faulted = true
	block := r.alloc(t, 1<<10, r.a)
	r.host(t).Fail(host.FaultCopy, 1)
	open := cisterntest.Hold(t, r.a) // until the copy's event is also queued
	c, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 100))
	require.NoError(t, err)
	open()
	require.ErrorIs(t, c.Wait(t.Context()), device.ErrSticky)
	_, err = r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 100))
	require.ErrorIs(t, err, device.ErrSticky)
	r.pool.Close()
	require.Zero(t, rec.Open())
	ups := rec.Of(transfer.OpH2D)
	require.NotEmpty(t, ups)
	for _, e := range ups {
		require.ErrorIs(t, e.Err, device.ErrSticky)
		require.NotEmpty(t, e.Err.Error())
	}
}
