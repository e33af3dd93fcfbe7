package loader_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// TestBatchesAreChargedToWhoTakesThem: a batch counts in the meter of the Next that returns it,
// with any caller of Start and any time of the upload. The sizes of the source's batches identify
// them.
func TestBatchesAreChargedToWhoTakesThem(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{64, 64}, Ahead: 2})
	require.NoError(t, err)
	outer, all := r.pool.Meter(t.Context())
	n := 0
	require.NoError(t, l.Start(outer, func(_ context.Context, fields [][]byte) error {
		if n++; n > 10 {
			return io.EOF
		}
		fields[0], fields[1] = fields[0][:n], fields[1][:n%2*20]
		return nil
	}))
	var sum int64
	for i := int64(1); i <= 10; i++ {
		ctx, m := r.pool.Meter(outer)
		b, err := l.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		copies, bytes := m.Count(transfer.OpH2D)
		require.Equal(t, []int64{1 + i%2, i + i%2*20}, []int64{copies, bytes}, "batch %d", i)
		sum += bytes
		_, bytes = all.Count(transfer.OpH2D)
		require.Equal(t, sum, bytes, "copies ahead of their use do not count yet")
	}
	ctx, m := r.pool.Meter(outer)
	_, err = l.Next(ctx)
	require.ErrorIs(t, err, io.EOF)
	copies, _ := m.Count(transfer.OpH2D)
	require.Zero(t, copies)
	require.Equal(t, sum, r.pool.Stats().H2DBytes)
	require.NoError(t, l.Close())
}
