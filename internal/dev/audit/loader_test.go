package audit

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer/loader"
)

// TestLoader compares a loader's statistics, and what its batches count in the steps that take
// them, with what the source gave.
func TestLoader(t *testing.T) {
	w := newWorld(t, 0)
	ctx := context.Background()
	fields := []int64{4096, mib}
	l, err := loader.New(ctx, w.pool, loader.Config{Cache: w.cache, Compute: w.main, Fields: fields, Ahead: 2})
	require.NoError(t, err)
	lengths := [][]int{{1, mib}, {4096, 511}, {0, 513}, {100, 0}, {7, 7}}
	want := loader.Stats{}
	began := time.Now()
	for epoch := range 2 {
		i := 0
		require.NoError(t, l.Start(ctx, func(_ context.Context, batch [][]byte) error {
			if i == len(lengths)-epoch {
				return io.EOF
			}
			for f := range batch {
				batch[f] = batch[f][:lengths[i][f]]
			}
			i++
			return nil
		}))
		want.Epochs++
		for n := int64(0); ; n++ {
			step, s := w.profiler.StartStep(ctx, n+1)
			b, err := l.Next(step)
			if errors.Is(err, io.EOF) {
				require.Zero(t, s.End().H2DBytes)
				break
			}
			require.NoError(t, err)
			bytes := int64(lengths[n][0] + lengths[n][1])
			want.Batches, want.Bytes = want.Batches+1, want.Bytes+bytes
			require.Equal(t, n, b.Index())
			require.Equal(t, []int64{int64(lengths[n][0]), int64(lengths[n][1])}, []int64{b.Bytes(0), b.Bytes(1)})
			require.NoError(t, b.Release())
			require.Equal(t, bytes, s.End().H2DBytes, "the step that took the batch, whenever it was uploaded")
		}
	}
	got := l.Stats()
	truth := of(want)
	truth["Waited"], truth["Throttled"] = between{0, float64(time.Since(began))}, between{0, float64(time.Since(began))}
	requireTrue(t, "loader.Stats", of(got), truth)
	require.NoError(t, w.profiler.Flush(ctx))
	metrics := w.metrics()
	require.EqualValues(t, want.Batches+want.Epochs, metrics["cistern.step.data.wait_time{}.count"], "steps, those that found the end too")
	require.InDelta(t, got.Waited.Seconds(), metrics["cistern.step.data.wait_time{}.sum"], 1e-9)
	require.NoError(t, l.Close())
	w.close()
}
