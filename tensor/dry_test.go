package tensor_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/cistern-ml/cistern/device/dry"
	"github.com/cistern-ml/cistern/tensor"
)

// TestDryValuesAreReportedOnce: the first read of a value logs a warning.
func TestDryValuesAreReportedOnce(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("dry devices need addresses of 64 bits")
	}
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	ctx := context.Background()
	for device, lines := range map[string]int{"dry:host": 1, "dry:cuda": 1, "host": 0} {
		log.Reset()
		rt, err := tensor.Open(device)
		require.NoError(t, err)
		x, err := tensor.FromSlice(ctx, rt, []float32{3, 4})
		require.NoError(t, err)
		sum, err := rt.Sum(ctx, x)
		require.NoError(t, err)
		require.NoError(t, rt.Synchronize(ctx))
		require.Empty(t, log.String())
		for range 2 {
			v, err := tensor.Item[float32](ctx, sum)
			require.NoError(t, err)
			require.EqualValues(t, 7*(1-lines), v)
		}
		require.NoError(t, x.Release())
		require.NoError(t, sum.Release())
		require.NoError(t, rt.Close())
		require.Equal(t, lines, strings.Count(log.String(), "\n"), log.String())
		require.Equal(t, lines, strings.Count(log.String(), device))
	}
}
