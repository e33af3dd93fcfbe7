package trace

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// brittle is a device whose events are counted and fail on demand.
type brittle struct {
	*host.Device
	made, closed              int
	queries                   atomic.Int64
	making, elapsing, closing error
	waiting                   error // of Synchronize, for events that are complete too
}

func (d *brittle) NewEvent(o device.EventOptions) (device.Event, error) {
	if d.making != nil {
		return nil, d.making
	}
	e, err := d.Device.NewEvent(o)
	d.made++
	return &brittleEvent{e, d}, err
}

func (d *brittle) Elapsed(from, to device.Event) (took time.Duration, err error) {
	if d.elapsing != nil {
		return 0, d.elapsing
	}
	return d.Device.Elapsed(from.(*brittleEvent).Event, to.(*brittleEvent).Event)
}

func (d *brittle) BusyTime(from, to device.Event) (time.Duration, error) {
	return d.Device.BusyTime(from.(*brittleEvent).Event, to.(*brittleEvent).Event)
}

type brittleEvent struct {
	device.Event
	device *brittle
}

func (e *brittleEvent) Query() (bool, error) {
	e.device.queries.Add(1)
	return e.Event.Query()
}

func (e *brittleEvent) Synchronize(ctx context.Context) error {
	if e.device.waiting != nil {
		return e.device.waiting
	}
	return e.Event.Synchronize(ctx)
}

func (e *brittleEvent) Close() error {
	e.device.closed++
	return errors.Join(e.Event.Close(), e.device.closing)
}

type brittleStream struct {
	device.Stream
	device    *brittle
	recording error
	recorded  int
}

func (s *brittleStream) Device() device.Device { return s.device }

func (s *brittleStream) Record(e device.Event) error {
	if s.recording != nil {
		return s.recording
	}
	s.recorded++
	return s.Stream.Record(e.(*brittleEvent).Event)
}

var errEvent = errors.New("no more events")

// newBrittle makes a profiler on a brittle device.
func newBrittle(t *testing.T, synchronize bool) (*brittle, *brittleStream, *Profiler) {
	inner := cisterntest.Host(t, 16*mib)
	d := &brittle{Device: inner}
	stream := cisterntest.Stream(t, inner)
	s := &brittleStream{Stream: stream, device: d}
	cache, err := memcache.New(d, memcache.Config{})
	require.NoError(t, err)
	p, err := NewProfiler(ProfilerConfig{Cache: cache, Stream: s, Synchronize: synchronize})
	require.NoError(t, err)
	require.NoError(t, p.events.Close()) // what steps give back is closed
	t.Cleanup(func() {
		require.NoError(t, stream.Close())
		require.NoError(t, cache.Close())
		require.NoError(t, inner.Close())
	})
	return d, s, p
}

// A step is complete whatever fails about its events, Flush returns the error, and no event stays
// open.
func TestEventsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fail   func(*brittle, *brittleStream)
		closed int // before Close
	}{
		"making":    {func(d *brittle, _ *brittleStream) { d.making = errEvent }, 0},
		"recording": {func(_ *brittle, s *brittleStream) { s.recording = errEvent }, 1},
		"elapsing":  {func(d *brittle, _ *brittleStream) { d.elapsing = errEvent }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, p := newBrittle(t, true)
			c.fail(d, s)
			_, step := p.StartStep(t.Context(), 1)
			assert.False(t, step.End().DeviceTimed)
			assert.Equal(t, int64(1), p.Summary().Steps)
			assert.Equal(t, []int{d.made, c.closed}, []int{c.closed, d.closed}, "what can't be used is closed")
			assert.ErrorIs(t, p.Flush(t.Context()), errEvent)
			require.NoError(t, p.Close())
			assert.Equal(t, d.made, d.closed)
		})
	}
}

// Steps reuse the events of earlier ones. Race builds keep none.
func TestEventsAreReused(t *testing.T) {
	d, _, p := newBrittle(t, true)
	p.events = device.EventPool{Device: p.events.Device, Options: p.events.Options}
	for i := range int64(3) {
		_, step := p.StartStep(t.Context(), i)
		assert.True(t, step.End().DeviceTimed)
	}
	made := 2
	if race.Enabled {
		made = 6
	}
	assert.Equal(t, made, d.made)
	require.NoError(t, p.Close())
	assert.Equal(t, made, d.closed)
}

// A step's two events are closed once they are read.
func TestEventsAreClosedWithTheirStep(t *testing.T) {
	d, _, p := newBrittle(t, true)
	for i := range int64(3) {
		_, step := p.StartStep(t.Context(), i)
		assert.True(t, step.End().DeviceTimed)
		assert.Equal(t, []int{2 * int(i+1), 2 * int(i+1)}, []int{d.made, d.closed})
	}
	require.NoError(t, p.Close())
	assert.Equal(t, []int{6, 6}, []int{d.made, d.closed})
}

// The step's second event fails: the first one is closed, and the step has no device time.
func TestSecondEventFails(t *testing.T) {
	d, s, p := newBrittle(t, true)
	_, step := p.StartStep(t.Context(), 1)
	s.recording = errEvent
	assert.False(t, step.End().DeviceTimed)
	assert.Equal(t, []int{2, 2}, []int{d.made, d.closed})
	assert.ErrorIs(t, p.Close(), errEvent)
	assert.Equal(t, 1, s.recorded)
}

// An event that can't be closed is an error of Flush, and of Close.
func TestEventsThatCannotBeClosed(t *testing.T) {
	d, s, p := newBrittle(t, true)
	d.closing = errors.New("can't be closed")
	s.recording = errEvent
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	assert.ErrorIs(t, p.Flush(t.Context()), errEvent, "the first error is told")
	s.recording, d.elapsing = nil, d.closing
	_, step = p.StartStep(t.Context(), 2)
	step.End()
	assert.ErrorIs(t, p.Flush(t.Context()), d.closing)
	d.elapsing = nil
	_, step = p.StartStep(t.Context(), 3)
	assert.True(t, step.End().DeviceTimed)
	assert.ErrorIs(t, p.Close(), d.closing, "of the step's events")
	p.discard(&brittleEvent{device: d, Event: freshEvent(t, d)})
	assert.ErrorIs(t, p.Flush(t.Context()), d.closing)
	d.closing = nil
	require.NoError(t, p.Close())
}

func freshEvent(t *testing.T, d *brittle) device.Event {
	e, err := d.Device.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	return e
}

// A profiler that is closed makes no events and records none.
func TestClosedProfilerLeavesTheStreamAlone(t *testing.T) {
	d, s, p := newBrittle(t, true)
	_, step := p.StartStep(t.Context(), 1)
	assert.True(t, step.End().DeviceTimed)
	require.NoError(t, p.Close())
	made, recorded := d.made, s.recorded
	_, step = p.StartStep(t.Context(), 2)
	assert.False(t, step.End().DeviceTimed)
	assert.Equal(t, []int{made, recorded}, []int{d.made, s.recorded})
	require.NoError(t, p.Close())
	assert.Equal(t, d.made, d.closed)
	assert.Equal(t, int64(2), p.Summary().Steps)
}

// A clock that can't record its event closes it, and uses another one later.
func TestClockClosesTheEventThatFails(t *testing.T) {
	d, s, _ := newBrittle(t, false)
	clock := &deviceClock{stream: s}
	s.recording = errEvent
	a, err := clock.take(d)
	require.ErrorIs(t, err, errEvent)
	require.Nil(t, a)
	require.Equal(t, d.made, d.closed)
	s.recording = nil
	a, err = clock.take(d)
	require.NoError(t, err)
	require.NoError(t, errors.Join(clock.give(a), clock.close()))
	require.Equal(t, d.made, d.closed)
}

// closesWhileOpening is a device that closes a clock while its stream is opened.
type closesWhileOpening struct {
	device.Device
	clock  *deviceClock
	opened device.Stream
}

func (d *closesWhileOpening) NewStream(o device.StreamOptions) (_ device.Stream, err error) {
	d.opened, err = d.Device.NewStream(o)
	return d.opened, errors.Join(err, d.clock.close())
}

// A clock that is closed while its stream is opened closes the stream, too, and returns none.
func TestClockIsClosedWhileItIsOpened(t *testing.T) {
	d, _, _ := newBrittle(t, false)
	clock := new(deviceClock)
	closes := &closesWhileOpening{Device: d, clock: clock}
	for range 2 {
		a, err := clock.take(closes)
		require.NoError(t, err)
		require.Nil(t, a)
		require.True(t, closes.opened.Closed())
	}
	require.Zero(t, d.made)
}

// closes is a stream that closes its clock while an event is recorded.
type closes struct {
	*brittleStream
	clock *deviceClock
}

func (s *closes) Record(e device.Event) error {
	return errors.Join(s.brittleStream.Record(e), s.clock.close())
}

// An event that was taken while the clock was closed is closed by the step that releases it.
func TestClockIsClosedWhileAnEventIsTaken(t *testing.T) {
	d, s, _ := newBrittle(t, false)
	clock := new(deviceClock)
	clock.stream = &closes{s, clock}
	a, err := clock.take(d)
	require.NoError(t, err)
	require.Zero(t, d.closed)
	require.NoError(t, clock.give(a))
	require.Equal(t, d.made, d.closed)
}
