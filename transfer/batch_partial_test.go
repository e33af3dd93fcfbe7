package transfer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// When a stream refuses a step, what it has taken before runs, and the memory of that is in flight until it has.
func TestBatchQueuedInPart(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block, data := r.alloc(t, 4096, r.a), fill(make([]byte, 4096), 1)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 4096, 9)
	require.NoError(t, err)
	open := hold(t, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, data))
	require.NoError(t, b.Launch(&device.Launch{Name: "nothing to run"}, block))
	_, err = b.Output(t.Context(), block, 0, 4096)
	require.NoError(t, err)
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorContains(t, err, "transfer: Submit of 8192 bytes")
	got := []byte{1, 2, 3}
	require.ErrorIs(t, b.CollectOne(t.Context(), 0, &got), device.ErrInvalid)
	require.Equal(t, []byte{1, 2, 3}, got)
	require.NoError(t, b.Close())
	require.Positive(t, r.pool.Stats().Pending, "the upload is queued")
	before := r.pool.Stats().Misses
	for range 2 {
		next := r.get(t, 64<<10)
		fill(next.Bytes(), 0xee)
		defer next.Release()
	}
	require.Equal(t, before+2, r.pool.Stats().Misses, "handed out under a copy")
	open()
	require.Equal(t, data, r.read(t, r.a, block))
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
}
