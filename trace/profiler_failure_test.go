package trace

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/memcache"
)

// unclocked is a device that can't measure the busy time, as a GPU can't.
type unclocked struct{ device.Device }

type unclockedStream struct {
	device.Stream
	dev device.Device
}

func (s unclockedStream) Device() device.Device { return s.dev }

// stepFailures are kinds of failures that a step's device time, or a wait for it, may not survive.
var stepFailures = map[failtest.Kind]string{
	failtest.Failed: "a step whose device time can't be taken is complete without, and Flush says why",
	failtest.Ended:  "a Flush that is cancelled completes what the device is done with",
}

// timed is the known state of a step: that it is complete, and the time, the busy time and the span
// of the device's part.
type timed struct{ complete, device, busy, placed bool }

// walker makes the steps of a trial.
type walker struct {
	*failing
	p        *Profiler
	steps    int64
	last     *Step
	launched bool // its kernel
}

// kernelTime is the least duration of a kernel.
const kernelTime = 100 * time.Microsecond

// walker makes a profiler of that configuration, without its goroutine, whose timing varies.
func (m *failing) walker(config ProfilerConfig) *walker {
	m.t.Helper()
	config.Tracer = m.tracer()
	if config.Cache == nil {
		config.Cache, config.Stream = m.cache, m.stream
	}
	w := &walker{failing: m}
	var err error
	w.p, err = NewProfiler(config)
	require.NoError(m.t, err)
	begun(w.p)
	return w
}

// step is a step with a kernel that takes a while.
func (w *walker) step() error {
	w.steps++
	_, w.last = w.p.StartStep(context.Background(), w.steps)
	err := w.p.config.Stream.Launch(&device.Launch{Name: "k", Func: func() { time.Sleep(kernelTime) }})
	w.launched = err == nil
	w.last.End()
	return err
}

// see returns the known state of the last step.
func (w *walker) see() any {
	profile := w.last.Profile()
	seen := timed{complete: w.p.Summary().Steps == w.steps, device: profile.DeviceTimed, busy: profile.BusyTimed}
	if seen.busy && w.launched {
		assert.GreaterOrEqual(w.t, profile.BusyTime, kernelTime, "a wrong time is worse than none")
	}
	for _, s := range w.spans.Ended() {
		seen.placed = seen.placed || s.Name() == deviceSpan && attributes(s)[KeyStep] == w.steps
	}
	return seen
}

// left checks that a step that has failed in part is complete, and that the next one is normal.
func (w *walker) left(any, error) error {
	require.NoError(w.t, w.p.Flush(context.Background()))
	assert.Equal(w.t, w.steps, w.p.Summary().Steps)
	err := errors.Join(w.step(), w.p.Flush(context.Background()))
	assert.Equal(w.t, timed{true, true, true, true}, w.see())
	return err
}

// flushes is a trial of a Flush after a step.
func (w *walker) flushes() failtest.Trial {
	require.NoError(w.t, w.step())
	return failtest.Trial{Do: w.p.Flush, See: w.see, Left: w.left, Undo: w.p.Close}
}

// walks is a trial of a step with its Flush.
func (w *walker) walks() failtest.Trial {
	return failtest.Trial{
		Do: func(ctx context.Context) error { return errors.Join(w.step(), w.p.Flush(ctx)) },
		See: func() any {
			if w.last == nil {
				return nil
			}
			return w.see()
		},
		Left: w.left,
		Undo: w.p.Close,
	}
}

// kernels is a walker whose device can't measure the busy time of its steps.
func (m *failing) kernels() *walker {
	dev := unclocked{m.dev}
	var kernels KernelTimer
	s, err := dev.NewStream(device.StreamOptions{Launching: kernels.Launching})
	require.NoError(m.t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(m.t, err)
	m.t.Cleanup(func() { assert.NoError(m.t, errors.Join(s.Close(), cache.Close())) })
	return m.walker(ProfilerConfig{Cache: cache, Stream: unclockedStream{s, dev}, Kernels: &kernels})
}

// profilerRows are programs of a profiler.
var profilerRows = []failtest.Row[*failing]{
	{Of: "Profiler.Flush", Partly: stepFailures, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.walker(ProfilerConfig{}).flushes()
	}},
	{Of: "Profiler.Flush of a step", Partly: stepFailures, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.walker(ProfilerConfig{}).walks()
	}},
	{Of: "Profiler.Flush of a step that waits for the device", Partly: stepFailures, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.walker(ProfilerConfig{Synchronize: true}).walks()
	}},
	{Of: "Profiler.Flush of a step with kernels", Partly: stepFailures, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.kernels().walks()
	}},
	{Of: "NewProfiler Profiler.Close with its goroutine", Make: func(t testing.TB, m *failing) failtest.Trial {
		seen := 0
		return failtest.Trial{
			Do: func(context.Context) error {
				told := 0
				p, err := NewProfiler(ProfilerConfig{Cache: m.cache, Stream: m.stream, OnProfile: func(StepProfile) { told++ }})
				if err != nil {
					return err
				}
				w := &walker{failing: m, p: p}
				for range 3 {
					err = errors.Join(err, w.step())
					time.Sleep(lookFirst)
				}
				err = errors.Join(err, p.Close())
				assert.Equal(t, 3, told, "each step is told once")
				if err == nil {
					seen = told
				}
				return err
			},
			See: func() any { return seen },
		}
	}},
	{Of: "NewProfiler Profiler.Close", Make: func(t testing.TB, m *failing) failtest.Trial {
		tracer := m.tracer()
		var seen any
		return failtest.Trial{
			Do: func(context.Context) error {
				p, err := NewProfiler(ProfilerConfig{Cache: m.cache, Stream: m.stream, Tracer: tracer})
				if err != nil {
					return err
				}
				begun(p)
				w := &walker{failing: m, p: p}
				err = errors.Join(w.step(), p.Close())
				assert.NoError(t, p.Close(), "the second one")
				assert.Zero(t, p.pending())
				if err == nil {
					seen = w.see()
				}
				return err
			},
			See: func() any { return seen },
		}
	}},
}

// renewed makes a clock take a new event next.
func renewed(c *deviceClock) error {
	last := c.last
	c.last = nil
	return c.give(last)
}

// TestStepsWaitForTheirPlace: a step is complete when the event that places it is reached, although
// the device has finished the step before.
func TestStepsWaitForTheirPlace(t *testing.T) {
	w := openFailing(t, new(failtest.Faults)).walker(ProfilerConfig{})
	require.NoError(t, errors.Join(w.step(), w.p.Flush(t.Context())))
	require.NoError(t, renewed(&w.p.clock))
	release := cisterntest.Hold(t, w.p.clock.stream)
	require.NoError(t, errors.Join(w.step(), w.stream.Synchronize(t.Context())))
	w.p.poll(false, device.Event.Query)
	require.Equal(t, 1, w.p.pending())
	release()
	require.NoError(t, w.p.Flush(t.Context()))
	require.Equal(t, timed{true, true, true, true}, w.see())
	require.NoError(t, w.p.Close())
}
