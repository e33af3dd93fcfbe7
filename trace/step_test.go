package trace

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

func (f *fixture) profiler(t testing.TB, config ProfilerConfig) *Profiler {
	t.Helper()
	if config.Cache == nil {
		config.Cache = f.cache
	}
	p, err := NewProfiler(config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// traced is a profiler with every option.
func (f *fixture) traced(t testing.TB) *Profiler {
	return f.profiler(t, ProfilerConfig{Pool: f.pool, Stream: f.stream, Tracer: f.tracer})
}

func TestStepProfile(t *testing.T) {
	f := newFixture(t, Config{})
	before := f.alloc(t, t.Context(), 1000) // a miss before the step
	p := f.profiler(t, ProfilerConfig{Pool: f.pool, Stream: f.stream, Synchronize: true})
	ctx, step := p.StartStep(t.Context(), 7)
	big := f.alloc(t, ctx, 4*mib)
	f.stream.Launch(&device.Launch{Name: "work", Func: func() { time.Sleep(time.Millisecond) }})
	require.NoError(t, big.Free())
	again := f.alloc(t, ctx, 3*mib)
	c, err := f.pool.Upload(ctx, f.stream, again, 0, make([]byte, 2048))
	require.NoError(t, err)
	require.NoError(t, f.pool.Download(ctx, f.stream, make([]byte, 100), again, 0))
	require.NoError(t, c.Wait(ctx))
	got := step.End()
	assert.Equal(t, got, step.End(), "the second End changes nothing")

	assert.True(t, got.DeviceTimed)
	assert.GreaterOrEqual(t, got.DeviceTime, got.BusyTime)
	assert.GreaterOrEqual(t, got.BusyTime, time.Millisecond)
	assert.GreaterOrEqual(t, got.HostTime, got.DeviceTime)
	assert.WithinDuration(t, time.Now(), got.Start, time.Minute)
	assert.Equal(t, StepProfile{
		Step: 7, Start: got.Start,
		AllocatedStart: before.Size(), AllocatedEnd: before.Size() + again.Size(), AllocatedPeak: before.Size() + big.Size(),
		RequestedPeak: 1000 + 4*mib, Reserved: f.cache.MemoryReserved(), ReservedPeak: f.cache.MaxMemoryReserved(),
		Allocations: 2, Frees: 1, Hits: 1, Misses: 1, DriverAllocs: 1,
		OwnPeak: big.Size(), OwnLive: again.Size(), OwnAllocations: 2,
		H2DBytes: 2048, D2HBytes: 100,
		HostTime: got.HostTime, DeviceTime: got.DeviceTime, DeviceTimed: true, BusyTime: got.BusyTime, BusyTimed: true, Peak: got.Peak,
	}, got)
	assert.InDelta(t, 0.5, got.HitRate(), 0)
	assert.Empty(t, f.spans.Started(), "no tracer, no spans")
	require.NoError(t, again.Free())
	require.NoError(t, before.Free())
}

func TestStepSpan(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 3)
	b := f.alloc(t, ctx, 5*mib)
	require.NoError(t, b.Free())
	profile := step.End()
	require.NoError(t, p.Flush(t.Context()))

	spans := f.named("cistern.step")
	require.Len(t, spans, 1)
	assert.Equal(t, spans[0].SpanContext().SpanID(), f.named("cistern.memory.driver_alloc")[0].Parent().SpanID())
	assert.True(t, profile.Start.Equal(spans[0].StartTime()))
	assert.Equal(t, profile.HostTime, spans[0].EndTime().Sub(spans[0].StartTime()), "the span is as long as the step")
	a := attributes(spans[0])
	assert.Equal(t, int64(3), a[KeyStep])
	assert.Equal(t, "slow", a[KeyStepDetail])
	assert.Equal(t, b.Size(), a[KeyStepPeak])
	assert.Equal(t, int64(5*mib), a[KeyStepRequested])
	assert.Equal(t, int64(1), a[KeyStepMisses])
	assert.Equal(t, int64(0), a[KeyStepHits])
	assert.Equal(t, step.Profile().DeviceTime.Seconds(), a[KeyStepDeviceTime])
	assert.Equal(t, int64(2), f.tracer.Counts().Skipped, "one allocation and one free")
}

// A step never waits for the device; its profile and span are completed when the device has
// finished.
func TestDeviceTimeComesLater(t *testing.T) {
	f := newFixture(t, Config{})
	var complete []int64
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Tracer: f.tracer, OnProfile: func(r StepProfile) {
		assert.True(t, r.DeviceTimed)
		complete = append(complete, r.Step)
	}})
	unblock := cisterntest.Hold(t, f.stream)
	_, first := p.StartStep(t.Context(), 1)
	assert.False(t, first.End().DeviceTimed)
	_, second := p.StartStep(t.Context(), 2)
	assert.False(t, second.End().DeviceTimed)
	assert.Empty(t, f.named("cistern.step"), "the device time is still missing")
	assert.Empty(t, complete)
	assert.Equal(t, Summary{Pending: 2}, p.Summary())

	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, p.Flush(short), context.DeadlineExceeded)
	assert.Equal(t, int64(2), p.Summary().Pending, "a cancelled Flush loses nothing")

	unblock()
	require.NoError(t, f.stream.Synchronize(t.Context()))
	_, third := p.StartStep(t.Context(), 3)
	third.End() // does not complete the others itself, and they are without a Flush
	require.Eventually(t, func() bool { return p.Summary().Steps >= 2 }, 10*time.Second, time.Millisecond)
	assert.True(t, first.Profile().DeviceTimed)
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, []int64{1, 2, 3}, complete)
	require.Len(t, f.named("cistern.step"), 3)
	assert.Equal(t, int64(3), p.Summary().Steps)
	assert.Zero(t, p.Summary().Pending)
}

func TestAllEvery(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 3})
	p := f.traced(t)
	spans := make([]int, 7)
	for i := range spans {
		before := len(f.named("cistern.memory.alloc")) + len(f.named("cistern.memory.free"))
		ctx, step := p.StartStep(t.Context(), int64(i))
		for range 5 {
			require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
		}
		require.NoError(t, f.alloc(t, t.Context(), 512).Free()) // not of the step
		step.End()
		require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx)) // too late
		spans[i] = len(f.named("cistern.memory.alloc")) + len(f.named("cistern.memory.free")) - before
	}
	assert.Equal(t, []int{10, 0, 0, 10, 0, 0, 10}, spans)
	assert.Zero(t, f.tracer.allSteps.Load())
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, "all", attributes(f.named("cistern.step")[3])[KeyStepDetail])
	assert.Equal(t, "slow", attributes(f.named("cistern.step")[4])[KeyStepDetail])
	assert.Equal(t, int64(4*12), f.tracer.Counts().Skipped)
}

// Of two steps at once, the one that was sampled has spans, and the other has none.
func TestDetailBelongsToTheStep(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 2})
	p := f.traced(t)
	sampled, first := p.StartStep(t.Context(), 0)
	other, second := p.StartStep(t.Context(), 1)
	require.NoError(t, f.alloc(t, other, 512).FreeContext(other))
	assert.Empty(t, f.named("cistern.memory.alloc"))
	require.NoError(t, f.alloc(t, sampled, 512).FreeContext(sampled))
	assert.Len(t, f.named("cistern.memory.alloc"), 1)
	first.End()
	second.End()
}

func TestUnsampledSteps(t *testing.T) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	f := newFixture(t, Config{TracerProvider: never, AllEvery: 1})
	p := f.traced(t)
	for i := range int64(3) {
		ctx, step := p.StartStep(t.Context(), i)
		require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
		assert.Zero(t, f.tracer.allSteps.Load(), "nobody records it")
		step.End()
	}
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, Counts{SampledOut: 3}, f.tracer.Counts())
	assert.Equal(t, int64(3), p.Summary().Steps)

	f = newFixture(t, Config{TracerProvider: never})
	ctx, step := f.traced(t).StartStep(t.Context(), 1)
	require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
	step.End()
	assert.Equal(t, Counts{SampledOut: 1}, f.tracer.Counts(), "nothing is left out of a step that is not recorded")
}

// An allocation with a step's context after its end is not the step's own.
func TestOwnBlocksEndWithTheStep(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, step := f.profiler(t, ProfilerConfig{}).StartStep(t.Context(), 1)
	require.NoError(t, f.alloc(t, ctx, 512).Free())
	step.End()
	require.NoError(t, f.alloc(t, ctx, 512).Free())
	assert.Equal(t, int64(1), step.scope.Own().Allocations)
	assert.Equal(t, int64(1), step.scope.Window().Allocations)
}

func TestFailedStep(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 1)
	_, err := f.cache.Alloc(ctx, 100*mib, f.stream)
	require.Error(t, err)
	step.Fail(nil)
	step.Fail(err)
	assert.Equal(t, int64(1), step.End().OutOfMemory)
	require.NoError(t, p.Flush(t.Context()))
	span := f.named("cistern.step")[0]
	assert.Equal(t, codes.Error, span.Status().Code)
	assert.Equal(t, "out_of_memory", attributes(span)["error.type"])
	assert.Equal(t, int64(1), attributes(span)[KeyStepOOMs])
	assert.Len(t, span.Events(), 1)
}

// After a failure of the device only the device time is missing.
func TestStepsOfADeadDevice(t *testing.T) {
	f := newFixture(t, Config{})
	p, err := NewProfiler(ProfilerConfig{Cache: f.cache, Stream: f.stream, Tracer: f.tracer})
	require.NoError(t, err)
	_, step := p.StartStep(t.Context(), 1)
	require.NoError(t, f.stream.Close())
	assert.False(t, step.End().DeviceTimed)
	_, step = p.StartStep(t.Context(), 2)
	step.End()
	assert.ErrorIs(t, p.Flush(t.Context()), device.ErrClosed)
	assert.NoError(t, p.Flush(t.Context()), "an error is told once")
	assert.Equal(t, int64(2), p.Summary().Steps)
	assert.Len(t, f.named("cistern.step"), 2)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, step = p.StartStep(t.Context(), 3)
	step.End()
	assert.Equal(t, int64(3), p.Summary().Steps)
}

func TestProfilerConfigIsChecked(t *testing.T) {
	_, err := NewProfiler(ProfilerConfig{})
	assert.ErrorIs(t, err, ErrInvalid)
	f, other := newFixture(t, Config{}), newFixture(t, Config{})
	_, err = NewProfiler(ProfilerConfig{Cache: f.cache, Stream: other.stream})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = NewProfiler(ProfilerConfig{Cache: f.cache, Pool: other.pool})
	assert.ErrorIs(t, err, ErrInvalid)

	var step *Step
	assert.Zero(t, step.End())
	assert.Zero(t, step.Profile())
	step.Fail(errors.New("nothing"))
}

func TestStepsConcurrentSafe(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 4})
	complete := 0
	p := f.profiler(t, ProfilerConfig{Pool: f.pool, Stream: f.stream, Tracer: f.tracer,
		OnProfile: func(StepProfile) { complete++ }})
	const goroutines, rounds = 4, 25
	done := make(chan struct{})
	for g := range goroutines {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range rounds {
				ctx, step := p.StartStep(t.Context(), int64(g*rounds+i))
				b, err := f.cache.Alloc(ctx, 4096, f.stream)
				if assert.NoError(t, err) {
					assert.NoError(t, b.FreeContext(ctx))
				}
				step.End()
				assert.Equal(t, int64(1), step.Profile().OwnAllocations)
				if i%10 == 0 {
					assert.NoError(t, p.Flush(t.Context()))
					_ = p.Summary()
				}
			}
		}()
	}
	for range goroutines {
		<-done
	}
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, goroutines*rounds, complete)
	assert.Equal(t, int64(goroutines*rounds), p.Summary().Steps)
	assert.Len(t, f.named("cistern.step"), goroutines*rounds)
	assert.Len(t, f.named("cistern.memory.alloc"), goroutines*rounds/4)
	assert.Zero(t, f.tracer.allSteps.Load())
}

// Synchronize waits no longer than the step's context lasts, and the step is not lost.
func TestSynchronizeIsCancelled(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Synchronize: true})
	unblock := cisterntest.Hold(t, f.stream)
	ctx, cancel := context.WithCancel(t.Context())
	_, step := p.StartStep(ctx, 1)
	cancel()
	assert.False(t, step.End().DeviceTimed)
	unblock()
	require.NoError(t, p.Flush(t.Context()))
	assert.True(t, step.Profile().DeviceTimed)
}

func TestNilProfiler(t *testing.T) {
	for _, p := range []*Profiler{nil, {}} {
		ctx, step := p.StartStep(t.Context(), 1)
		assert.Equal(t, t.Context(), ctx)
		assert.Nil(t, step)
		assert.NoError(t, p.Flush(t.Context()))
		assert.Zero(t, p.Summary())
		assert.NoError(t, p.Table(io.Discard))
		assert.NoError(t, p.Close())
	}
}

// After a failure of work on the device the profile has no device time, and Flush returns the
// reason.
func TestStepsOfAFailedDevice(t *testing.T) {
	dev := cisterntest.Host(t, 16*mib)
	stream := cisterntest.Stream(t, dev)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	p, err := NewProfiler(ProfilerConfig{Cache: cache, Stream: stream})
	require.NoError(t, err)
	_, step := p.StartStep(t.Context(), 1)
	dev.Fail(host.FaultLaunch, 1)
	require.NoError(t, stream.Launch(&device.Launch{Name: "fails", Func: func() {}}))
	step.End()
	assert.ErrorIs(t, p.Flush(t.Context()), device.ErrSticky)
	assert.Equal(t, int64(1), p.Summary().Steps)
	assert.False(t, p.Summary().First.DeviceTimed)
	assert.NoError(t, p.Close())
	_ = cache.Close()
	_ = stream.Close()
	_ = dev.Close()
}

func TestResetInsideAStep(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	for range 5 {
		require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	}
	ctx, step := p.StartStep(t.Context(), 1)
	require.NoError(t, f.alloc(t, ctx, 512).Free())
	f.cache.ResetAccumulatedStats()
	for range 9 { // more than before the step
		require.NoError(t, f.alloc(t, ctx, 512).Free())
	}
	got := step.End()
	assert.Equal(t, int64(10), got.Allocations)
	assert.Equal(t, int64(10), got.Frees)
}

// Steps without device times are complete when all Ends have returned, whichever End completed
// them.
func TestNoStepIsForgottenConcurrentSafe(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	const goroutines, rounds = 8, 200
	done := make(chan struct{})
	for range goroutines {
		go func() {
			for range rounds {
				_, step := p.StartStep(t.Context(), 1)
				step.End()
			}
			done <- struct{}{}
		}()
	}
	for range goroutines {
		<-done
	}
	assert.Equal(t, int64(goroutines*rounds), p.Summary().Steps)
}

// With Synchronize End returns a complete profile, even if it has to wait for another goroutine to
// complete it.
func TestSynchronizeWaitsItsTurn(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Synchronize: true})
	p.drain <- struct{}{}
	got := make(chan StepProfile)
	go func() {
		_, step := p.StartStep(t.Context(), 1)
		got <- step.End()
	}()
	for p.pending() == 0 {
		runtime.Gosched()
	}
	<-p.drain
	assert.True(t, (<-got).DeviceTimed)
}
