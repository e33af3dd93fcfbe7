package trace

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
)

// untimed is the setup of tests of kernel timers on a device that can't measure its busy time.
type untimed struct {
	*stacktest.Stack
	kernels KernelTimer
	stream  device.Stream // whose kernels are timed
	running device.Event  // the stream is at the last kernel
}

// newUntimed opens the device that CISTERN_TEST_DEVICE names, or a host device that is not a
// BusyTimer.
func newUntimed(t *testing.T) *untimed {
	var c stacktest.Config
	if c.Capacity = 64 * mib; cisterntest.Named() == "" {
		c.Device = &cisterntest.Untimed{Device: cisterntest.Host(t, c.Capacity)}
	}
	u := &untimed{Stack: stacktest.New(t, c)}
	_, tells := u.Dev.(device.BusyTimer)
	require.False(t, tells)
	var err error
	u.running, err = u.Dev.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	u.stream, err = u.Dev.NewStream(device.StreamOptions{Launching: device.LaunchingHooks(u.kernels.Launching, func(s device.Stream, _ string) func(error) {
		assert.NoError(t, s.Record(u.running))
		return nil
	})})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, u.stream.Close())
		require.NoError(t, cisterntest.FreeFlags(u.Dev))
		require.NoError(t, u.running.Close())
	})
	return u
}

// run runs a kernel for a while, and returns the least time that it ran.
func (u *untimed) run(t *testing.T) time.Duration {
	release := cisterntest.Hold(t, u.stream)
	require.NoError(t, u.running.Synchronize(t.Context()))
	began := time.Now()
	time.Sleep(2 * time.Millisecond)
	ran := time.Since(began)
	release()
	require.NoError(t, u.stream.Synchronize(t.Context()))
	return ran
}

// idle does nothing for a while, and returns the least time that the stream was idle.
func (u *untimed) idle() time.Duration {
	began := time.Now()
	time.Sleep(2 * time.Millisecond)
	return time.Since(began)
}

// A device that can't measure it has busy times by its kernels: all of their time, and no wait for
// the host.
func TestKernelTimer(t *testing.T) {
	u := newUntimed(t)
	p, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels})
	require.NoError(t, err)
	u.run(t) // before the steps
	for n := range int64(3) {
		var ran, idle time.Duration
		_, step := p.StartStep(t.Context(), n+1)
		require.NoError(t, u.stream.Synchronize(t.Context()), "the step has begun on the stream, too")
		for range 3 {
			idle += u.idle()
			ran += u.run(t)
		}
		step.End()
		require.NoError(t, p.Flush(t.Context()))
		r := step.Profile()
		require.True(t, r.DeviceTimed && r.BusyTimed)
		slack := time.Duration(0)
		if cisterntest.Named() != "" {
			slack = ran / 100 // two clocks, and one of half a microsecond
		}
		assert.GreaterOrEqual(t, r.BusyTime+slack, ran)
		assert.GreaterOrEqual(t, r.DeviceTime-r.BusyTime+slack, idle)
		u.run(t) // between the steps
	}
	assert.True(t, p.Summary().Mean.BusyTimed)
	require.NoError(t, p.Close())
	assert.Zero(t, u.kernels.kept)
}

// If the device measures busy time itself, that is used, and no kernel is timed.
func TestKernelTimerOfADeviceWithABusyTime(t *testing.T) {
	f := newFixture(t, Config{})
	var kernels KernelTimer
	s, err := f.dev.NewStream(device.StreamOptions{Launching: kernels.Launching})
	require.NoError(t, err)
	p := f.profiler(t, ProfilerConfig{Stream: s, Kernels: &kernels})
	_, step := p.StartStep(t.Context(), 1)
	assert.Nil(t, kernels.Launching(s, "k"))
	require.NoError(t, s.Launch(&device.Launch{Name: "k", Func: func() {}}))
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	assert.True(t, step.Profile().BusyTimed)
	assert.Zero(t, kernels.began)
	require.NoError(t, s.Close())
}

// After a kernel that blocks the stream no work waits for the host. The kernels are then a part of
// the host device's busy time, and none is missing.
func TestKernelTimerBesideTheDevice(t *testing.T) {
	inner := cisterntest.Host(t, 64*mib)
	dev := &cisterntest.Untimed{Device: inner}
	s := stacktest.New(t, stacktest.Config{Device: dev})
	var kernels KernelTimer
	stream, err := dev.NewStream(device.StreamOptions{Launching: kernels.Launching})
	require.NoError(t, err)
	p, err := NewProfiler(ProfilerConfig{Cache: s.Cache, Stream: stream, Kernels: &kernels})
	require.NoError(t, err)
	var marks [2]device.Event
	for i := range marks {
		marks[i], err = dev.NewEvent(device.EventOptions{Timed: true})
		require.NoError(t, err)
	}
	release := cisterntest.Hold(t, stream)
	require.NoError(t, stream.Record(marks[0]))
	_, step := p.StartStep(t.Context(), 1)
	const n = 20
	var ran [n]time.Duration
	for i := range n {
		require.NoError(t, stream.Launch(&device.Launch{Name: "k", Func: func() {
			began := time.Now()
			time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
			ran[i] = time.Since(began)
		}}))
	}
	step.End()
	require.NoError(t, stream.Record(marks[1]))
	release()
	require.NoError(t, stream.Synchronize(t.Context()))
	require.NoError(t, p.Close())
	busy, err := inner.BusyTime(marks[0], marks[1])
	require.NoError(t, err)
	require.NoError(t, errors.Join(marks[0].Close(), marks[1].Close()))
	r := step.Profile()
	require.True(t, r.BusyTimed)
	assert.LessOrEqual(t, r.BusyTime, busy)
	var sum time.Duration
	for _, d := range ran {
		sum += d
	}
	assert.GreaterOrEqual(t, r.BusyTime, sum)
	require.NoError(t, stream.Close())
}

// Goroutines that launch while steps begin and end leave no event open, and no step's busy time
// exceeds its time.
func TestKernelTimerOfManyGoroutines(t *testing.T) {
	u := newUntimed(t)
	if _, ok := u.Dev.(device.HostVisible); !ok {
		t.Skip("the kernels are Go functions")
	}
	var profiles []StepProfile
	p, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels, OnProfile: func(r StepProfile) { profiles = append(profiles, r) }})
	require.NoError(t, err)
	var goroutines sync.WaitGroup
	for g := range int64(4) {
		goroutines.Go(func() {
			for n := range int64(50) {
				var step *Step
				if g < 2 {
					_, step = p.StartStep(t.Context(), n)
				}
				for range 5 {
					assert.NoError(t, u.stream.Launch(&device.Launch{Name: "k", Func: func() { time.Sleep(time.Microsecond) }}))
				}
				step.End()
			}
		})
	}
	goroutines.Wait()
	require.NoError(t, p.Close())
	require.Len(t, profiles, 100)
	for _, r := range profiles {
		assert.LessOrEqual(t, r.BusyTime, r.DeviceTime)
	}
	assert.Zero(t, u.kernels.kept)
	assert.Zero(t, u.kernels.launching)
	assert.Empty(t, u.kernels.open)
}

func TestKernelTimersThatAreRefused(t *testing.T) {
	u := newUntimed(t)
	_, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Kernels: &u.kernels})
	require.ErrorIs(t, err, ErrInvalid)
	first, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels})
	require.NoError(t, err)
	_, err = NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels})
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, first.Close())
	second, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels})
	require.NoError(t, err)
	require.NoError(t, first.Close(), "which takes nothing from the second")
	require.Same(t, second, u.kernels.profiler.Load())
	require.NoError(t, second.Close())
	require.Nil(t, u.kernels.Launching(u.stream, "k"), "nobody wants to know")
	var none *KernelTimer
	require.Nil(t, none.Launching(u.stream, "k"))
}

// Other streams, and those of other devices, are ignored.
func TestKernelTimerOfOtherStreams(t *testing.T) {
	u := newUntimed(t)
	p, err := NewProfiler(ProfilerConfig{Cache: u.Cache, Stream: u.stream, Kernels: &u.kernels})
	require.NoError(t, err)
	other, err := host.New(host.Config{Capacity: mib})
	require.NoError(t, err)
	_, step := p.StartStep(t.Context(), 1)
	for _, dev := range []device.Device{u.Dev, other} {
		s := cisterntest.Stream(t, dev)
		require.Nil(t, u.kernels.Launching(s, "k"))
		require.NoError(t, s.Close())
	}
	step.End()
	require.NoError(t, p.Close())
	require.False(t, step.Profile().BusyTimed, "nothing was launched: the stream may have been made without Launching")
	require.True(t, step.Profile().DeviceTimed)
	require.NoError(t, other.Close())
}
