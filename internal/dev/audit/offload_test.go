package audit

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
)

// TestOffloadedSteps compares the copies and the memory of steps that move tensors of known sizes to
// the host and back.
func TestOffloadedSteps(t *testing.T) {
	b := tapetest.Open(t, 256*mib)
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: b.Cache, Pool: b.RT.Pool()})
	require.NoError(t, err)
	offloader, err := tensor.NewOffloader(b.RT, tensor.OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	w := &world{t: t, reader: sdkmetric.NewManualReader()}
	tracer, err := trace.New(trace.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader))})
	require.NoError(t, err)
	_, err = tracer.WatchOffload(b.RT.Device(), offloader.Stats)
	require.NoError(t, err)
	bytes, moved := int64(0), int64(0)
	requireOffloaded := func(now int64) {
		got := w.metrics()
		require.Equal(t, []any{now, moved, bytes}, // sizes that are not rounded; buffers are kept for the next step
			[]any{got["cistern.offload.memory.usage{}"], got["cistern.offload.moved{}"], got["cistern.offload.pinned.usage{}"]})
	}
	var tensors []*tensor.Tensor
	for _, n := range []int{128, mib / 4, 3 * mib / 4} { // of 4 bytes each
		x, err := tensor.FromSlice(b.Ctx, b.RT, make([]float32, n))
		require.NoError(t, err)
		tensors, bytes = append(tensors, x), bytes+int64(4*n)
	}
	require.NoError(t, b.RT.Synchronize(b.Ctx))
	before := b.Cache.MemoryAllocated()
	for n := range int64(2) {
		ctx, step := profiler.StartStep(b.Ctx, 2*n+1)
		for _, x := range tensors {
			away, err := offloader.Offload(ctx, x)
			require.NoError(t, err)
			require.True(t, away)
		}
		require.NoError(t, b.RT.Synchronize(ctx))
		out := step.End()
		moved += bytes
		requireOffloaded(bytes)
		ctx, step = profiler.StartStep(b.Ctx, 2*n+2)
		for _, x := range tensors {
			require.NoError(t, offloader.Fetch(ctx, x))
		}
		require.NoError(t, b.RT.Synchronize(ctx))
		in := step.End()
		requireOffloaded(0)
		require.Equal(t, []int64{before, before - bytes, before, 3, 0, bytes, 0},
			[]int64{out.AllocatedStart, out.AllocatedEnd, out.AllocatedPeak, out.Frees, out.Allocations, out.D2HBytes, out.H2DBytes})
		require.Equal(t, []int64{before - bytes, before, before, 0, 3, 0, bytes, bytes},
			[]int64{in.AllocatedStart, in.AllocatedEnd, in.AllocatedPeak, in.Frees, in.Allocations, in.D2HBytes, in.H2DBytes, in.OwnLive})
	}
	for _, x := range tensors {
		require.NoError(t, x.Release())
	}
	require.NoError(t, errors.Join(tracer.Close(), offloader.Close(), profiler.Close()))
}
