package forecast_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// fitsReally reports whether a program runs on a host device of a number of bytes.
func fitsReally(t *testing.T, capacity int64, program forecast.Program) bool {
	t.Helper()
	rt, err := tensor.Open("host", tensor.CacheConfig(memcache.Config{MemoryLimit: capacity}))
	require.NoError(t, err)
	_, err = forecast.Measure(context.Background(), rt, program)
	if err != nil {
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	}
	_ = rt.Close() // returns the program's error again
	return err == nil
}

func TestLargestBatch(t *testing.T) {
	ctx, k := context.Background(), transformer(2, 2, 32, 24, 100)
	const limit = 20 << 20
	for _, h := range []forecasttest.How{forecasttest.Plain, forecasttest.Checkpointed} {
		n, f, err := forecast.LargestBatch(ctx, "dry:host", limit, func(batch int) forecast.Program { return k.Program(h, batch) })
		require.NoError(t, err)
		require.Greater(t, n, 8, h.Name)
		require.LessOrEqual(t, f.ReservedPeak, int64(limit))
		require.True(t, f.Fits)
		require.True(t, fitsReally(t, limit, k.Program(h, n)), "%s: a batch of %d", h.Name, n)
		require.False(t, fitsReally(t, limit, k.Program(h, n+1)), "%s: a batch of %d", h.Name, n+1)
	}
	n, f, err := forecast.LargestBatch(ctx, "dry:host", 1<<20, func(batch int) forecast.Program { return k.Program(forecasttest.Plain, batch) })
	require.NoError(t, err)
	require.Zero(t, n)
	require.False(t, f.Fits)
	_, _, err = forecast.LargestBatch(ctx, "dry:host", limit, nil)
	require.Error(t, err)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = forecast.LargestBatch(canceled, "dry:host", limit, func(batch int) forecast.Program { return k.Program(forecasttest.Plain, batch) })
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = forecast.SmallestLimit(canceled, "dry:host", k.Program(forecasttest.Plain, 1))
	require.ErrorIs(t, err, context.Canceled)
}

func TestSmallestLimit(t *testing.T) {
	ctx, k := context.Background(), transformer(2, 2, 32, 24, 100)
	for _, h := range []forecasttest.How{forecasttest.Plain, forecasttest.Captured} {
		program := k.Program(h, 64)
		limit, f, err := forecast.SmallestLimit(ctx, "dry:host", program)
		require.NoError(t, err)
		require.LessOrEqual(t, f.ReservedPeak, limit)
		require.Equal(t, limit, f.Capacity)
		require.Zero(t, limit%(2<<20))
		require.True(t, fitsReally(t, limit, program), h.Name)
		require.False(t, fitsReally(t, limit-2<<20, program), h.Name)
	}
}

// TestDoesNotFit: the figures are those of a device with enough memory.
func TestDoesNotFit(t *testing.T) {
	ctx, program := context.Background(), transformer(2, 2, 32, 24, 100).Program(forecasttest.Plain, 64)
	small, err := forecast.Step(ctx, "dry:host?capacity=4MiB", program)
	require.NoError(t, err)
	large, err := forecast.Step(ctx, "dry:host?capacity=1GiB", program)
	require.NoError(t, err)
	require.False(t, small.Fits)
	require.True(t, large.Fits)
	require.EqualValues(t, 4<<20, small.Capacity)
	require.Empty(t, large.Advice)
	require.Equal(t, large.ReservedPeak, small.ReservedPeak)
	var table strings.Builder
	require.NoError(t, small.Table(&table))
	require.True(t, strings.HasPrefix(table.String(), "does not fit in 4.00 MiB of dry:host: "), table.String())
}

func TestStepRefuses(t *testing.T) {
	ctx := context.Background()
	program := transformer(1, 1, 4, 4, 8).Program(forecasttest.Plain, 1)
	_, err := forecast.Step(ctx, "host", program)
	require.ErrorContains(t, err, "Measure")
	_, err = forecast.Step(ctx, "dry:tpu", program)
	require.ErrorContains(t, err, "dry:tpu")
	mine := errors.New("mine")
	_, err = forecast.Step(ctx, "dry:host", func(context.Context, *tensor.Runtime) (*forecast.Training, error) { return nil, mine })
	require.ErrorIs(t, err, mine)
	closed := 0
	_, err = forecast.Step(ctx, "dry:host", func(context.Context, *tensor.Runtime) (*forecast.Training, error) {
		return &forecast.Training{Step: func(context.Context) error { return mine }, Close: func() error { closed++; return nil }}, nil
	})
	require.ErrorIs(t, err, mine)
	require.Equal(t, 1, closed)
	_, err = forecast.Step(ctx, "dry:host", func(context.Context, *tensor.Runtime) (*forecast.Training, error) {
		return &forecast.Training{Close: func() error { closed++; return nil }}, mine
	})
	require.ErrorIs(t, err, mine)
	require.Equal(t, 2, closed, "a training that comes with an error")
	_, err = forecast.Step(ctx, "dry:host", nil)
	require.Error(t, err)
	_, err = forecast.Step(ctx, "dry:host", func(context.Context, *tensor.Runtime) (*forecast.Training, error) { return nil, nil })
	require.Error(t, err)
	_, err = forecast.Step(ctx, "dry:host", func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		return &forecast.Training{Step: func(ctx context.Context) error { _, err := rt.Zeros(ctx, tensor.Float32, 9); return err }}, nil
	})
	require.ErrorIs(t, err, tensor.ErrLeaked)
	_, err = forecast.Measure(ctx, nil, program)
	require.ErrorIs(t, err, device.ErrInvalid)
	var none context.Context
	_, err = forecast.Step(none, "dry:host", program)
	require.ErrorIs(t, err, device.ErrInvalid)
	_, _, err = forecast.LargestBatch(none, "dry:host", 1<<30, func(int) forecast.Program { return program })
	require.ErrorIs(t, err, device.ErrInvalid)
	_, _, err = forecast.SmallestLimit(none, "dry:host", program)
	require.ErrorIs(t, err, device.ErrInvalid)
}

func TestJSON(t *testing.T) {
	f, err := forecast.Step(context.Background(), "dry:cuda?gpu=L4", transformer(1, 1, 4, 4, 8).Program(forecasttest.Plain, 2))
	require.NoError(t, err)
	require.Equal(t, "float32[2,4,8]", f.Layers[0].Output, "the model's last operation, not the first")
	text, err := json.Marshal(f)
	require.NoError(t, err)
	var back forecast.Forecast
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, f.Layers, back.Layers)
	require.Equal(t, f.Lines, back.Lines)
	require.Equal(t, f.Step.AllocatedPeak, back.Step.AllocatedPeak)
}
