package trace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/cisterntest"
)

// A step of a host that sleeps and a kernel that works tells the two apart: in its profile, the summary, and on its spans. The kernel
// and the host say themselves how long they took.
func TestBusyTimeIsApartFromWaiting(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	var worked time.Duration
	began := time.Now()
	_, step := p.StartStep(t.Context(), 1)
	require.NoError(t, f.stream.Launch(&device.Launch{Name: "work", Func: func() {
		began := time.Now()
		time.Sleep(5 * time.Millisecond)
		worked = time.Since(began)
	}}))
	require.NoError(t, f.stream.Synchronize(t.Context()))
	slept := time.Now()
	time.Sleep(50 * time.Millisecond)
	waited := time.Since(slept)
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	r := step.Profile()
	require.True(t, r.DeviceTimed && r.BusyTimed)
	assert.GreaterOrEqual(t, r.BusyTime, worked)
	assert.GreaterOrEqual(t, r.DeviceTime-r.BusyTime, waited/2, "but for how long a goroutine takes to fall asleep")
	assert.GreaterOrEqual(t, r.DeviceTime, worked+waited)
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
	assert.False(t, part.StartTime().Before(began))
	assert.False(t, part.EndTime().After(time.Now()))
	assert.Equal(t, int64(f.stream.ID()), attributes(part)[KeyStream])
}

// The device's part of a step that was queued behind other work begins when that is done, by the host's clock.
func TestDevicePartBeginsWhenTheDeviceDoes(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	_, first := p.StartStep(t.Context(), 1) // the anchor is reached by the end of Flush
	first.End()
	require.NoError(t, p.Flush(t.Context()))
	unblock := cisterntest.Hold(t, f.stream)
	_, step := p.StartStep(t.Context(), 2)
	ended := time.Now()
	step.End()
	time.Sleep(20 * time.Millisecond)
	unblock()
	require.NoError(t, p.Flush(t.Context()))
	span, part := f.named("cistern.step")[1], f.named("cistern.step.device")[1]
	assert.True(t, part.StartTime().After(ended.Add(10*time.Millisecond)), "it began %v after the host's part had ended", part.StartTime().Sub(ended))
	assert.False(t, part.EndTime().After(time.Now()))
	assert.Less(t, span.EndTime().Sub(ended), 10*time.Millisecond, "the host's part is the step's own span")
}

// On a device that can't tell there is no busy time, rather than a wrong one.
func TestDevicesThatDontKnowTheirBusyTime(t *testing.T) {
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
	got, err := p.clock.take()
	assert.NoError(t, err)
	assert.Nil(t, got)
}

func TestUntracedStepsHaveNoClock(t *testing.T) {
	f := newFixture(t, Config{})
	assert.Nil(t, f.profiler(t, ProfilerConfig{Stream: f.stream}).clock)
	assert.Nil(t, f.profiler(t, ProfilerConfig{Tracer: f.tracer}).clock)
}
