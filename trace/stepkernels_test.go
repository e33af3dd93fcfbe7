package trace

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// ticking is a device whose clock the test advances: an event is reached when it is recorded.
type ticking struct {
	*cisterntest.Untimed
	now time.Duration // the time at a Record

	mu           sync.Mutex
	made, closed int
	failing      map[string]error // by operation
}

func (d *ticking) fail(op string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = map[string]error{op: err}
}

func (d *ticking) failure(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failing[op]
}

// left returns the number of open events.
func (d *ticking) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made - d.closed
}

func (d *ticking) NewEvent(o device.EventOptions) (device.Event, error) {
	if err := d.failure("new"); err != nil {
		return nil, err
	}
	e, err := d.Untimed.NewEvent(o)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	return &tick{Event: e, dev: d}, err
}

func (d *ticking) Elapsed(from, to device.Event) (time.Duration, error) {
	a, b := from.(*tick), to.(*tick)
	if err := d.failure("elapsed"); err != nil && !a.step {
		return 0, err
	}
	_, err := d.Untimed.Elapsed(a.Event, b.Event) // an error if they are not done
	return b.at - a.at, err
}

type tick struct {
	device.Event
	dev  *ticking
	at   time.Duration
	step bool // it is a step's
}

func (e *tick) Close() error {
	e.dev.mu.Lock()
	e.dev.closed++
	e.dev.mu.Unlock()
	return e.Event.Close()
}

type tickingStream struct {
	device.Stream
	dev      *ticking
	recorded func() // once, after the next event
	ofStep   bool   // whose event the next one is
}

func (s *tickingStream) Device() device.Device { return s.dev }

func (s *tickingStream) Record(e device.Event) error {
	if err := s.dev.failure("record"); err != nil {
		return err
	}
	t := e.(*tick)
	t.at, t.step = s.dev.now, s.ofStep
	err := s.Stream.Record(t.Event)
	if f := s.recorded; f != nil {
		s.recorded = nil
		f()
	}
	return err
}

// clockwork is a profiler of a ticking device's kernels.
type clockwork struct {
	*Profiler
	t       *testing.T
	dev     *ticking
	stream  *tickingStream
	kernels KernelTimer
}

func newClockwork(t *testing.T) *clockwork {
	w := &clockwork{t: t, dev: &ticking{Untimed: &cisterntest.Untimed{Device: cisterntest.Host(t, 16*mib)}}}
	w.stream = &tickingStream{Stream: cisterntest.Stream(t, w.dev.Untimed), dev: w.dev}
	cache, err := memcache.New(w.dev, memcache.Config{})
	require.NoError(t, err)
	w.Profiler, err = NewProfiler(ProfilerConfig{Cache: cache, Stream: w.stream, Kernels: &w.kernels})
	require.NoError(t, err)
	require.NoError(t, w.events.Close()) // what steps give back is closed
	t.Cleanup(func() {
		_ = w.Close()
		require.Zero(t, w.dev.left())
		require.Zero(t, w.kernels.kept)
		require.Zero(t, w.kernels.launching)
		require.Empty(t, w.kernels.open)
		require.NoError(t, w.stream.Close())
		require.NoError(t, cache.Close())
		require.NoError(t, w.dev.Close())
	})
	return w
}

func (w *clockwork) begin() (launched func(error)) { return w.kernels.Launching(w.stream, "k") }

func (w *clockwork) launch(took time.Duration) {
	launched := w.begin()
	w.dev.now += took
	launched(nil)
}

func (w *clockwork) start() *Step {
	w.stream.ofStep = true
	_, s := w.StartStep(w.t.Context(), 1)
	w.stream.ofStep = false
	return s
}

// requireBusy flushes, and compares a step's busy time; -1: it has none, or only the device's.
func (w *clockwork) requireBusy(s *Step, want time.Duration) {
	w.t.Helper()
	require.NoError(w.t, w.Flush(w.t.Context()))
	r := s.Profile()
	require.True(w.t, r.DeviceTimed)
	require.Equal(w.t, want >= 0, r.BusyTimed)
	require.Equal(w.t, max(0, want), r.BusyTime)
}

// Only kernels of steps get events. The events of kernels that were not launched are released and
// count nothing.
func TestKernelsOfAStep(t *testing.T) {
	w := newClockwork(t)
	w.launch(100)
	require.Zero(t, w.dev.made)
	s := w.start()
	require.Equal(t, 1, w.dev.made)
	w.launch(5)
	w.dev.now += 1000
	w.launch(7)
	require.Equal(t, 5, w.dev.made)
	refused := w.begin()
	w.dev.now += 50
	refused(errors.New("refused"))
	require.Equal(t, 6, w.dev.made)
	require.Equal(t, 5, w.dev.left())
	s.Fail(errors.New("failed"))
	s.End()
	w.launch(100)
	require.Equal(t, 7, w.dev.made)
	w.requireBusy(s, 12)
	require.Equal(t, time.Duration(12), w.Summary().LastFailed.BusyTime)
	require.Zero(t, w.dev.left())
	s = w.start()
	w.dev.now += 10
	s.End()
	w.requireBusy(s, 0)
}

// Steps that overlap share events; each has the kernels between its own.
func TestKernelsOfStepsThatOverlap(t *testing.T) {
	w := newClockwork(t)
	first := w.start()
	w.launch(1)
	second := w.start()
	w.launch(10)
	first.End()
	w.launch(100)
	require.Equal(t, 2+1+6, w.dev.made)
	w.requireBusy(first, 11)
	require.Equal(t, 1+4, w.dev.left(), "the second step's")
	second.End()
	w.requireBusy(second, 110)
}

// A step that is over gets no more kernels, even if the device has not reached its end: they would
// count for it, and their events would never be released.
func TestKernelsAfterAnIncompleteStep(t *testing.T) {
	w := newClockwork(t)
	first := w.start()
	w.launch(1)
	second := w.start()
	w.launch(10)
	w.dev.now += 1000
	release := cisterntest.Hold(t, w.stream.Stream)
	first.End()
	w.launch(100)
	release()
	w.requireBusy(first, 11)
	second.End()
	w.requireBusy(second, 110)
	require.Zero(t, w.dev.left())
	require.Zero(t, w.kernels.kept)
}

// Overlapping launches of several goroutines are not counted twice, in whatever order they end.
func TestOverlappingLaunches(t *testing.T) {
	w := newClockwork(t)
	s := w.start()
	w.dev.now += 1000
	a := w.begin()
	w.dev.now += 2
	b := w.begin()
	w.dev.now += 3
	c := w.begin()
	w.dev.now += 4
	c(nil)
	a(nil)
	w.dev.now += 5
	b(nil)
	w.dev.now += 1000
	w.launch(6)
	s.End()
	w.requireBusy(s, 2+3+4+5+6)
}

// A kernel that is launched while a step begins or ends may be on either side.
func TestKernelsAtTheEdgesOfAStep(t *testing.T) {
	for name, edge := range map[string]func(w *clockwork) *Step{
		"about to be launched at the start": func(w *clockwork) *Step {
			launched := w.begin()
			s := w.start()
			launched(nil)
			s.End()
			return s
		},
		"launched after the first event, and not counted": func(w *clockwork) *Step {
			w.stream.recorded = func() { w.launch(3) }
			s := w.start()
			s.End()
			return s
		},
		"about to be launched at the end": func(w *clockwork) *Step {
			s := w.start()
			launched := w.begin()
			s.End()
			launched(nil)
			return s
		},
		"launched before the last event, and not counted": func(w *clockwork) *Step {
			s := w.start()
			w.stream.recorded = func() { w.launch(3) }
			s.End()
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newClockwork(t)
			whole := w.start()
			w.launch(2)
			w.requireBusy(edge(w), -1)
			whole.End()
			require.NoError(t, w.Flush(t.Context()))
			require.True(t, whole.Profile().BusyTimed, "the step around it is none the worse")
		})
	}
}

// A step with an event that fails has no busy time, Flush returns the reason, and the next step has
// one again.
func TestEventsOfKernelsThatFail(t *testing.T) {
	for _, op := range []string{"new", "record"} {
		for _, before := range []bool{true, false} {
			w := newClockwork(t)
			s := w.start()
			w.launch(1)
			if before {
				w.dev.fail(op, errEvent)
			}
			launched := w.begin()
			w.dev.fail(op, errEvent)
			launched(nil)
			w.dev.fail("", nil)
			require.Equal(t, 1, w.dev.left(), "the step's own")
			w.launch(1)
			s.End()
			require.ErrorIs(t, w.Flush(t.Context()), errEvent)
			w.requireBusy(s, -1)
			s = w.start()
			w.launch(3)
			s.End()
			w.requireBusy(s, 3)
		}
	}
	for _, overlap := range []bool{false, true} {
		w := newClockwork(t)
		s := w.start()
		launched := w.begin()
		if overlap {
			w.launch(1)
		}
		launched(nil)
		w.dev.fail("elapsed", errEvent)
		s.End()
		err := w.Flush(t.Context())
		require.ErrorIs(t, err, errEvent)
		require.ErrorContains(t, err, "the times of the kernels of step 1")
		w.requireBusy(s, -1)
		require.Zero(t, w.dev.left())
	}
}

// A step whose own events fail releases those of its kernels.
func TestKernelsOfAStepWithoutADeviceTime(t *testing.T) {
	w := newClockwork(t)
	w.dev.fail("new", errEvent)
	s := w.start()
	w.dev.fail("", nil)
	w.launch(1)
	require.Zero(t, w.dev.made, "its device time is not known anyway")
	s.End()
	s = w.start()
	w.launch(1)
	w.dev.fail("new", errEvent)
	s.End()
	require.ErrorIs(t, w.Flush(t.Context()), errEvent)
	require.Zero(t, w.dev.left())
	require.False(t, s.Profile().BusyTimed)

	w.dev.fail("", nil)
	s = w.start()
	w.launch(1)
	require.NoError(t, s.from.Close())
	w.dev.closed--
	s.End()
	require.ErrorIs(t, w.Flush(t.Context()), device.ErrClosed)
	require.False(t, s.Profile().BusyTimed)
	require.Zero(t, w.dev.left())
}

// The number of events is bounded. Steps that would need more have no busy time and release theirs,
// and Flush reports it once.
func TestKernelsAreBounded(t *testing.T) {
	w := newClockwork(t)
	w.kernels.kept = mostKernels - 2
	told := 0
	for range 2 {
		s := w.start()
		w.launch(1)
		w.launch(1)
		require.Equal(t, 5, w.dev.left())
		w.launch(1)
		require.Equal(t, 1, w.dev.left())
		w.launch(1)
		require.Equal(t, 1, w.dev.left())
		s.End()
		if err := w.Flush(t.Context()); err != nil {
			told++
			require.ErrorContains(t, err, "32768")
			w.requireBusy(s, -1)
			s = w.start()
			w.launch(1)
			w.launch(1)
			s.End()
			w.requireBusy(s, 2)
			continue
		}
		w.requireBusy(s, -1) // not reported again
	}
	require.Equal(t, 1, told)
	w.kernels.kept -= mostKernels - 2
}

// Close leaves no event of open steps, and their later kernels get none.
func TestKernelTimerIsClosedWithStepsOpen(t *testing.T) {
	w := newClockwork(t)
	ended, open := w.start(), w.start()
	w.launch(4)
	ended.End()
	w.launch(1)
	late := w.begin()
	require.NoError(t, w.Close())
	require.Equal(t, 1+1, w.dev.left(), "the first events of the step and of the launch that is open")
	w.requireBusy(ended, 4)
	late(nil)
	require.Nil(t, w.begin())
	open.End()
	require.False(t, open.Profile().BusyTimed)
	s := w.start()
	s.End()
	require.False(t, s.Profile().BusyTimed)
}

// Launches before a profiler was attached are no evidence that its stream has Launching.
func TestKernelTimerOfASecondProfiler(t *testing.T) {
	w := newClockwork(t)
	w.launch(1)
	require.NoError(t, w.Close())
	p, err := NewProfiler(ProfilerConfig{Cache: w.config.Cache, Stream: w.stream, Kernels: &w.kernels})
	require.NoError(t, err)
	_, s := p.StartStep(t.Context(), 1)
	s.End()
	require.NoError(t, p.Flush(t.Context()))
	require.True(t, s.Profile().DeviceTimed)
	require.False(t, s.Profile().BusyTimed)
	require.NoError(t, p.Close())
}

// A step that starts while its profiler is closed gets no kernels, even if another profiler
// follows.
func TestStepThatStartsDuringClose(t *testing.T) {
	w := newClockwork(t)
	w.stream.recorded = func() { require.NoError(t, w.Close()) } // after the first event
	s := w.start()
	require.Empty(t, w.kernels.open)
	s.End()
	require.False(t, s.Profile().DeviceTimed)
}

// Each time is rounded: kernels don't run longer than the step.
func TestBusyTimeIsNoLongerThanTheStep(t *testing.T) {
	w := newClockwork(t)
	s := w.start()
	w.launch(3)
	s.from.(*tick).at++
	s.End()
	w.requireBusy(s, 2)
}
