package transfer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// An observer gets each operation once, with its kind, bytes and stream, including refused ones.
func TestObserverOfEveryOperation(t *testing.T) {
	rec := &stacktest.Recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	a, b := r.alloc(t, 4096, r.a), r.alloc(t, 4096, r.a)
	mine := make([]byte, 4096)
	reg, err := r.pool.Register(t.Context(), mine)
	require.NoError(t, err)
	batch := r.pool.NewBatch()
	require.NoError(t, batch.Upload(t.Context(), a, 0, mine[:300]))
	_, err = batch.Output(t.Context(), a, 0, 500)
	require.NoError(t, err)
	rows := transfer.Rows{Width: 10, Height: 20, DstPitch: 30, SrcPitch: 40}
	var last *transfer.Copy
	for _, call := range []func() (*transfer.Copy, error){
		func() (*transfer.Copy, error) { return r.pool.H2D(t.Context(), r.a, a, 0, reg, 0, 100) },
		func() (*transfer.Copy, error) { return r.pool.D2H(t.Context(), r.a, reg, 0, a, 0, 200) },
		func() (*transfer.Copy, error) { return r.pool.D2D(t.Context(), r.a, b, 0, a, 0, 400) },
		func() (*transfer.Copy, error) { return r.pool.Fill(t.Context(), r.a, b, 0, 600, 1) },
		func() (*transfer.Copy, error) { return batch.Submit(t.Context(), r.a) },
		func() (*transfer.Copy, error) {
			return r.pool.Launch(t.Context(), r.a, r.inPlace(t, reg, mine, 0, 4096, 1), transfer.BufferUse{Buffer: reg, Writes: true})
		},
		func() (*transfer.Copy, error) { return r.pool.D2DStrided(t.Context(), r.a, b, 0, a, 0, rows) },
	} {
		last, err = call()
		require.NoError(t, err)
	}
	require.NoError(t, last.Wait(t.Context()))
	require.NoError(t, reg.Release())
	require.NoError(t, batch.Close())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	require.NoError(t, b.Free())
	_, err = r.pool.Fill(t.Context(), r.a, b, 0, 1, 1)
	require.ErrorIs(t, err, memcache.ErrFreed)
	_, err = r.pool.Launch(t.Context(), r.a, &device.Launch{Name: "nothing to run"})
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NoError(t, r.pool.Close())
	for op, want := range map[transfer.Op][]int64{
		transfer.OpH2D: {100}, transfer.OpD2H: {200}, transfer.OpD2D: {400, 200}, transfer.OpFill: {600}, transfer.OpBatch: {800},
		transfer.OpLaunch: {0, 0}, transfer.OpRegister: {4096}, transfer.OpUnregister: {4096},
		transfer.OpPinnedAlloc: {64 << 10, 64 << 10}, transfer.OpPinnedFree: {64 << 10, 64 << 10},
	} {
		var got []int64
		failed := 0
		for _, e := range rec.Of(op) {
			got = append(got, e.Bytes)
			if e.Err != nil {
				failed++
			}
			require.False(t, e.Done.Before(e.Queued))
			if op.Queued() {
				require.Equal(t, r.a.ID(), e.Stream, op)
			} else {
				require.Zero(t, e.Stream, op)
			}
		}
		require.ElementsMatch(t, want, got, "%v", op)
		require.Equal(t, op == transfer.OpLaunch, failed == 1, "%v: %d failed", op, failed)
	}
	require.NoError(t, a.Free())
}
