package transfer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// TestWhatStatsEvictsIsFreed: if Stats finds that a copy is done and its buffer over the budget, it
// frees nothing itself, and the next call frees the buffer.
func TestWhatStatsEvictsIsFreed(t *testing.T) {
	r := newRig(t, transfer.Config{MaxCachedBytes: 1 << 20})
	block := r.alloc(t, 2<<20, r.a)
	open := cisterntest.Hold(t, r.a)
	b, err := r.pool.Get(t.Context(), 2<<20)
	require.NoError(t, err)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 2<<20)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	open()
	require.NoError(t, r.a.Synchronize(t.Context()))
	st := r.pool.Stats()
	require.Zero(t, st.AllocatedBytes.Current)
	require.EqualValues(t, 2<<20, st.HeldBytes.Current)
	b, err = r.pool.Get(t.Context(), 64)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	require.EqualValues(t, 64, r.pool.Stats().HeldBytes.Current)
	require.NoError(t, block.Free())
}
