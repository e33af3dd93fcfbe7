//go:build race

package trace

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// The profiler's work between the two halves of a mistake must not hide it from the race detector.
var between = map[string]func(*testing.T, *fixture, *Profiler){
	"nothing": func(*testing.T, *fixture, *Profiler) {},
	"a step": func(t *testing.T, _ *fixture, p *Profiler) {
		_, step := p.StartStep(t.Context(), 2)
		step.End() // the first step is completed by a look at its events
		require.Eventually(t, func() bool { return p.Summary().Steps > 0 }, 10*time.Second, time.Millisecond)
	},
	"a flush": func(t *testing.T, _ *fixture, p *Profiler) {
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, int64(1), p.Summary().Steps)
	},
	"timed kernels": func(t *testing.T, f *fixture, _ *Profiler) {
		var kernels KernelTimer
		p := f.profiler(t, ProfilerConfig{Stream: f.stream})
		require.True(t, kernels.attach(p))
		p.busy, p.kernels = nil, &kernels
		_, step := p.StartStep(t.Context(), 2)
		kernels.Launching(f.stream, "k")(nil)
		step.End()
		require.NoError(t, p.Flush(t.Context()))
		require.True(t, step.Profile().BusyTimed)
	},
	"a collective": func(t *testing.T, f *fixture, _ *Profiler) {
		comm := f.communicator(t)
		b := f.alloc(t, t.Context(), 512)
		for range 3 { // the first ones are completed by a look at their events
			require.NoError(t, comm.AllReduce(f.stream, b.Ptr(), b.Ptr(), 128, device.Float32, device.ReduceSum))
			time.Sleep(5 * time.Millisecond)
		}
		require.NoError(t, b.Free())
		require.Len(t, f.collect(t)["cistern.collective.duration"].Data.(metricdata.Histogram[float64]).DataPoints, 1)
	},
	"spans": func(t *testing.T, f *fixture, _ *Profiler) {
		require.NotEmpty(t, f.named("cistern.transfer.h2d")) // takes the recorder's lock after the copy's End
		f.tracer.Counts()
	},
	"metrics": func(t *testing.T, f *fixture, _ *Profiler) {
		require.NotEmpty(t, f.collect(t))
	},
}

// mistake uploads on one stream, inside a step, and reads on another, with an event between them or
// without one.
func mistake(t *testing.T, with bool, do func(*testing.T, *fixture, *Profiler)) {
	f := newFixture(t, Config{Detail: All})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	_, err = f.tracer.WatchPool(f.pool)
	require.NoError(t, err)
	p := f.traced(t)
	other := f.newStream(t)
	ctx, step := p.StartStep(t.Context(), 1)
	b := f.alloc(t, ctx, 4096)
	unblock := cisterntest.Hold(t, f.stream)
	_, err = f.pool.Upload(ctx, f.stream, b, 0, make([]byte, 4096))
	require.NoError(t, err)
	step.End()
	unblock()
	if with {
		e, err := f.dev.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		require.NoError(t, f.stream.Record(e))
		require.NoError(t, other.Wait(e))
	}
	time.Sleep(20 * time.Millisecond)
	do(t, f, p)
	require.NoError(t, b.RecordStream(other))
	mem, err := f.dev.Bytes(b.Ptr(), 4096)
	require.NoError(t, err)
	require.NoError(t, other.Launch(&device.Launch{Reads: []device.Range{b.Range(0, 4096)}, Func: func() {
		if mem[0] != 0 {
			panic("never")
		}
	}}))
	require.NoError(t, b.Free())
	require.NoError(t, other.Close())
}

// TestMistake is one mistake or its corrected twin, in a process of its own.
func TestMistake(t *testing.T) {
	name, corrected := child.Mistake(t)
	mistake(t, corrected, between[name])
}

func TestMistakesAreReported(t *testing.T) {
	child.Mistakes(t, "TestMistake", slices.Collect(maps.Keys(between)), 2)
}
