package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

func deviceOf(t *testing.T) *Device {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func streamOf(t *testing.T, d *Device) device.Stream {
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	return s
}

func timedEvent(t *testing.T, d *Device) device.Event {
	e, err := d.NewEvent(device.EventOptions{Timed: true})
	require.NoError(t, err)
	return e
}

// asleep waits until the stream's goroutine waits for an operation.
//
//go:norace
func asleep(s device.Stream) {
	q := &s.(*stream).queue
	for {
		race.Disable()
		q.mu.Lock()
		asleep := q.asleep
		q.mu.Unlock()
		race.Enable()
		if asleep {
			return
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// awaited waits until some goroutine waits for the last record.
//
//go:norace
func awaited(e device.Event) {
	r := e.(*event).present()
	for {
		race.Disable()
		r.mu.Lock()
		awaited := r.wake != nil
		r.mu.Unlock()
		race.Enable()
		if awaited {
			return
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// TestBusyTime: an idle stream is not busy. The test measures the idle time itself, and the kernels
// measure their work.
func TestBusyTime(t *testing.T) {
	d := deviceOf(t)
	s := streamOf(t, d)
	from, to := timedEvent(t, d), timedEvent(t, d)
	var worked time.Duration
	work := &device.Launch{Name: "work", Func: func() {
		began := time.Now()
		time.Sleep(2 * time.Millisecond)
		worked += time.Since(began)
	}}
	require.NoError(t, s.Record(from))
	require.NoError(t, s.Launch(work))
	require.NoError(t, s.Synchronize(t.Context()))
	asleep(s)
	began := time.Now()
	time.Sleep(5 * time.Millisecond)
	waited := time.Since(began)
	require.NoError(t, s.Launch(work))
	require.NoError(t, s.Record(to))
	require.NoError(t, s.Synchronize(t.Context()))

	busy, err := d.BusyTime(from, to)
	require.NoError(t, err)
	all, err := d.Elapsed(from, to)
	require.NoError(t, err)
	require.GreaterOrEqual(t, busy, worked)
	require.GreaterOrEqual(t, all-busy, waited)
	none, err := d.BusyTime(to, to)
	require.NoError(t, err)
	require.Zero(t, none)
}

// TestBusyTimeOfWaitingStreams: a stream's wait for another stream is not busy time.
func TestBusyTimeOfWaitingStreams(t *testing.T) {
	d := deviceOf(t)
	s, other := streamOf(t, d), streamOf(t, d)
	from, to, gate := timedEvent(t, d), timedEvent(t, d), timedEvent(t, d)
	begun, hold := make(chan struct{}), make(chan struct{})
	require.NoError(t, other.Launch(&device.Launch{Name: "hold", Func: func() { close(begun); <-hold }}))
	require.NoError(t, other.Record(gate))
	<-begun
	require.NoError(t, s.Record(from))
	require.NoError(t, s.Wait(gate))
	require.NoError(t, s.Record(to))
	awaited(gate)
	began := time.Now()
	time.Sleep(10 * time.Millisecond)
	waited := time.Since(began)
	close(hold)
	require.NoError(t, s.Synchronize(t.Context()))
	busy, err := d.BusyTime(from, to)
	require.NoError(t, err)
	all, err := d.Elapsed(from, to)
	require.NoError(t, err)
	require.GreaterOrEqual(t, all-busy, waited)
}

func TestBusyTimeNeedsEventsOfOneStream(t *testing.T) {
	d := deviceOf(t)
	s, other := streamOf(t, d), streamOf(t, d)
	first, second, third, untimed := timedEvent(t, d), timedEvent(t, d), timedEvent(t, d), timedEvent(t, d)
	require.NoError(t, untimed.Close())
	require.NoError(t, s.Record(first))
	require.NoError(t, s.Record(second))
	require.NoError(t, other.Record(third))
	require.NoError(t, d.Synchronize(t.Context()))
	for _, c := range []struct {
		from, to device.Event
		want     string
	}{
		{first, third, "they must be of one"},
		{second, first, "after the second"},
		{first, nil, "nil"},
	} {
		_, err := d.BusyTime(c.from, c.to)
		require.ErrorIs(t, err, device.ErrInvalid)
		require.ErrorContains(t, err, c.want)
	}
	_, err := d.BusyTime(first, untimed)
	require.ErrorIs(t, err, device.ErrClosed)
}
