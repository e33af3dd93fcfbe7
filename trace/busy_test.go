package trace

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// A step separates the sleep of the host from the work of a kernel: in its profile, the summary,
// and on its spans. The kernel and the host measure their own times.
func TestBusyTimeExcludesWaits(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	var began, ended time.Time
	_, step := p.StartStep(t.Context(), 1)
	require.NoError(t, f.stream.Launch(&device.Launch{Name: "work", Func: func() { began = time.Now(); time.Sleep(time.Millisecond) }}))
	require.NoError(t, f.stream.Synchronize(t.Context()))
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, f.stream.Launch(&device.Launch{Name: "more", Func: func() { ended = time.Now() }}))
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, f.stream.Synchronize(t.Context())) // Flush orders nothing
	r := step.Profile()
	require.True(t, r.DeviceTimed && r.BusyTimed)
	assert.Positive(t, r.BusyTime)
	assert.Less(t, r.BusyTime, r.DeviceTime, "the stream had nothing to do while the host slept")
	assert.GreaterOrEqual(t, r.DeviceTime, ended.Sub(began))
	mean := p.Summary().Mean
	assert.True(t, mean.BusyTimed)
	assert.Equal(t, r.BusyTime, mean.BusyTime)

	span, part := f.named("cistern.step")[0], f.named("cistern.step.device")[0]
	assert.Equal(t, span.SpanContext().SpanID(), part.Parent().SpanID())
	for _, s := range []sdktrace.ReadOnlySpan{span, part} {
		a := attributes(s)
		assert.Equal(t, r.BusyTime.Seconds(), a[KeyStepDeviceBusy])
		assert.Equal(t, r.DeviceTime.Seconds(), a[KeyStepDeviceTime])
		assert.Equal(t, int64(1), a[KeyStep])
	}
	assert.Equal(t, r.DeviceTime, part.EndTime().Sub(part.StartTime()), "the device's own time")
	assert.False(t, part.StartTime().After(began))
	assert.False(t, part.EndTime().After(time.Now()))
	assert.Equal(t, int64(f.stream.ID()), attributes(part)[KeyStream])
}

// The device's part of a step that was queued after other work begins when that is complete, by the
// host's clock.
func TestDevicePartBeginsWhenTheDeviceDoes(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	_, first := p.StartStep(t.Context(), 1) // the anchor is reached by the end of Flush
	first.End()
	require.NoError(t, p.Flush(t.Context()))
	unblock := cisterntest.Hold(t, f.stream)
	_, step := p.StartStep(t.Context(), 2)
	step.End()
	time.Sleep(time.Millisecond)
	ended := time.Now()
	unblock()
	require.NoError(t, p.Flush(t.Context()))
	span, part := f.named("cistern.step")[1], f.named("cistern.step.device")[1]
	assert.True(t, part.StartTime().After(span.EndTime()), "the device began when the host's part was over")
	assert.False(t, part.EndTime().After(time.Now()))
	assert.True(t, span.EndTime().Before(ended), "the host's part is the step's own span")
}

// On a device that can't measure it there is no busy time, rather than a wrong one.
func TestDevicesWithoutABusyTime(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	p.busy = nil
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	assert.True(t, step.Profile().DeviceTimed)
	assert.False(t, step.Profile().BusyTimed)
	assert.False(t, p.Summary().Mean.BusyTimed)
}

// Steps share an anchor for a while; its event is closed after the last of them.
func TestAnchorsAreShared(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	var steps []*Step
	for i := range int64(3) {
		_, s := p.StartStep(t.Context(), i)
		steps = append(steps, s)
	}
	a := steps[0].anchor
	require.NotNil(t, a)
	assert.Same(t, a, steps[2].anchor)
	assert.Equal(t, 4, a.users)
	a.at = a.at.Add(-anchorAge)
	_, late := p.StartStep(t.Context(), 3)
	assert.NotSame(t, a, late.anchor)
	assert.Equal(t, 3, a.users)
	for _, s := range append(steps, late) {
		s.End()
	}
	require.NoError(t, p.Flush(t.Context()))
	assert.Zero(t, a.users)
	_, err := a.event.Query()
	assert.ErrorIs(t, err, device.ErrClosed)
	assert.Len(t, f.named("cistern.step.device"), 4)

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = late.anchor.event.Query()
	assert.ErrorIs(t, err, device.ErrClosed)
	got, err := p.clock.take(p.config.Cache.Device())
	assert.NoError(t, err)
	assert.Nil(t, got)
}

// An anchor that was reached is not queried again.
func TestAnchorIsQueriedOnce(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	begun(p)
	for i := range int64(2) {
		_, s := p.StartStep(t.Context(), i)
		s.End()
		require.NoError(t, p.clock.stream.Synchronize(t.Context()))
		require.NoError(t, f.stream.Synchronize(t.Context()))
		var asked atomic.Int64
		p.poll(false, func(e device.Event) (bool, error) {
			if e == s.anchor.event {
				asked.Add(1)
			}
			return e.Query()
		})
		assert.True(t, s.Profile().DeviceTimed)
		assert.Equal(t, 1-i, asked.Load())
	}
}

// With Synchronize a profile is complete even if the clock's stream is later than the step's.
func TestSynchronizeWaitsForTheClock(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Tracer: f.tracer, Synchronize: true})
	_, first := p.StartStep(t.Context(), 1)
	p.clock.last.at = p.clock.last.at.Add(-anchorAge)
	unblock := cisterntest.Hold(t, p.clock.stream)
	_, step := p.StartStep(t.Context(), 2) // has an anchor of its own
	assert.True(t, first.End().DeviceTimed)
	time.AfterFunc(20*time.Millisecond, unblock)
	assert.True(t, step.End().DeviceTimed)
	assert.Len(t, f.named("cistern.step.device"), 2)
}

// A step that can't be placed on the host's clock still has its device time, and Flush returns the
// reason why there is no span of it.
func TestDeviceTimeWithoutAPlace(t *testing.T) {
	for _, synchronize := range []bool{false, true} {
		f := newFixture(t, Config{})
		p := f.profiler(t, ProfilerConfig{Stream: f.stream, Tracer: f.tracer, Synchronize: synchronize})
		_, step := p.StartStep(t.Context(), 1)
		require.NoError(t, step.anchor.event.Close())
		step.End()
		err := p.Flush(t.Context())
		assert.ErrorIs(t, err, device.ErrClosed)
		assert.ErrorContains(t, err, "placing the device time of step 1")
		assert.True(t, step.Profile().DeviceTimed)
		assert.Contains(t, attributes(f.named("cistern.step")[0]), KeyStepDeviceTime)
		assert.Empty(t, f.named("cistern.step.device"))
	}
}

// The clock's stream is opened when the first span needs it, and closed with the profiler.
func TestClockIsOpenedByTheFirstSpan(t *testing.T) {
	f := newFixture(t, Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	p := f.traced(t)
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	assert.Nil(t, p.clock.stream)
	f = newFixture(t, Config{})
	p = f.traced(t)
	assert.Nil(t, p.clock.stream)
	_, step = p.StartStep(t.Context(), 1)
	step.End()
	require.NotNil(t, p.clock.stream)
	require.NoError(t, p.Close())
	assert.True(t, p.clock.stream.Closed())

	p = f.traced(t)
	require.NoError(t, p.Close())
	a, err := p.clock.take(f.dev) // of a step that met Close
	require.NoError(t, err)
	assert.Nil(t, a)
	assert.Nil(t, p.clock.stream)
}

func TestUntracedStepsHaveNoClock(t *testing.T) {
	f := newFixture(t, Config{})
	assert.Nil(t, f.profiler(t, ProfilerConfig{Stream: f.stream}).clock.stream)
	assert.Nil(t, f.profiler(t, ProfilerConfig{Tracer: f.tracer}).clock.stream)
}
