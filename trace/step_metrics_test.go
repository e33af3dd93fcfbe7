package trace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Prometheus may take any point in a bucket for a quantile, so a bucket may be 5 % wide. The
// smallest and the largest peak are in buckets with two boundaries.
func TestBucketsOfPeaks(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Cache: f.cache, Tracer: f.tracer})
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	bounds := f.collect(t)["cistern.step.memory.peak"].Data.(metricdata.Histogram[int64]).DataPoints[0].Bounds
	for i := range bounds[1:] {
		assert.Greater(t, bounds[i+1], bounds[i])
		assert.LessOrEqual(t, bounds[i+1], 1.05*bounds[i], "a bucket from %v on", bounds[i])
	}
	assert.Less(t, bounds[0], float64(1<<10))
	assert.GreaterOrEqual(t, bounds[len(bounds)-1], float64(80<<30))
}

// The gauges are of the step that was complete last, whether it failed or not.
func TestGaugesOfTheLastStep(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	for _, bytes := range []int64{4 * mib, mib} {
		ctx, step := p.StartStep(t.Context(), 1)
		require.NoError(t, f.alloc(t, ctx, bytes).Free())
		step.Fail(map[bool]error{true: ErrInvalid}[bytes == mib])
		step.End()
		require.NoError(t, p.Flush(t.Context()))
		profile, m := step.Profile(), f.collect(t)
		assert.Equal(t, map[string]int64{"": bytes}, points(t, m["cistern.step.memory.last_peak"]))
		busy := m["cistern.step.device.utilization"].Data.(metricdata.Gauge[float64]).DataPoints
		require.Len(t, busy, 1)
		assert.Positive(t, profile.DeviceTime)
		assert.InDelta(t, profile.BusyTime.Seconds()/profile.DeviceTime.Seconds(), busy[0].Value, 1e-6)
	}
}

// The utilization is missing if the device can't measure its busy time, and without a device time.
func TestStepsWithoutABusyTime(t *testing.T) {
	f, u := newFixture(t, Config{}), newUntimed(t)
	timed := f.profiler(t, ProfilerConfig{Cache: u.Cache, Stream: u.stream, Tracer: f.tracer})
	for _, p := range []*Profiler{timed, f.profiler(t, ProfilerConfig{Tracer: f.tracer})} {
		_, step := p.StartStep(t.Context(), 1)
		step.End()
		require.NoError(t, p.Flush(t.Context()))
		assert.Equal(t, p == timed, step.Profile().DeviceTime > 0)
	}
	assert.NotContains(t, f.collect(t), "cistern.step.device.utilization")
}
