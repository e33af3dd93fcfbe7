package device_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
)

// eventMaker counts the events that it makes and those that are closed.
type eventMaker struct {
	device.Device
	mu           sync.Mutex
	made, closed int
	fails        error // of NewEvent and Close
}

type madeEvent struct {
	device.Event
	by    *eventMaker
	owned atomic.Bool
}

func (m *eventMaker) NewEvent(o device.EventOptions) (device.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return nil, m.fails
	}
	m.made++
	e, err := m.Device.NewEvent(o)
	return &madeEvent{Event: e, by: m}, err
}

func (e *madeEvent) Close() error {
	e.by.mu.Lock()
	defer e.by.mu.Unlock()
	e.by.closed++
	return errors.Join(e.Event.Close(), e.by.fails)
}

func TestEventPool(t *testing.T) {
	host := cisterntest.Host(t, 1<<20)
	defer func() { require.NoError(t, host.Close()) }()
	dev := &eventMaker{Device: host}
	p := device.EventPool{Device: dev, Options: device.EventOptions{Timed: true}}
	a, err := p.Get()
	require.NoError(t, err)
	require.True(t, a.Timed())
	b, err := p.Get()
	require.NoError(t, err)
	require.NotSame(t, a, b)
	for _, e := range []device.Event{a, b} {
		require.NoError(t, p.Put(e))
	}
	c, err := p.Get()
	require.NoError(t, err)
	if race.Enabled {
		require.Equal(t, []int{3, 2}, []int{dev.made, dev.closed}, "nothing is kept")
	} else {
		require.Same(t, b, c, "the last one")
		d, err := p.Get()
		require.NoError(t, err)
		require.Same(t, a, d)
		require.Equal(t, []int{2, 0}, []int{dev.made, dev.closed})
		require.NoError(t, p.Put(d))
	}
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = c.Query()
	require.NoError(t, err, "it is out")
	require.NoError(t, p.Put(c))
	require.Equal(t, dev.made, dev.closed)
	_, err = c.Query()
	require.ErrorIs(t, err, device.ErrClosed)
}

func TestEventPoolTellsErrors(t *testing.T) {
	host := cisterntest.Host(t, 1<<20)
	defer func() { require.NoError(t, host.Close()) }()
	dev := &eventMaker{Device: host}
	p := device.EventPool{Device: dev}
	a, err := p.Get()
	require.NoError(t, err)
	b, err := p.Get()
	require.NoError(t, err)
	err = p.Put(a)
	require.NoError(t, err)
	dev.fails = errors.New("on purpose")
	if !race.Enabled {
		require.ErrorIs(t, p.Close(), dev.fails)
	}
	require.NoError(t, p.Close(), "nothing is left")
	require.ErrorIs(t, p.Put(b), dev.fails)
	require.Equal(t, 2, dev.closed)
	_, err = p.Get()
	require.ErrorIs(t, err, dev.fails)
}

func TestEventPoolAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds nothing is kept")
	}
	host := cisterntest.Host(t, 1<<20)
	defer func() { require.NoError(t, host.Close()) }()
	p := device.EventPool{Device: host}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var events [10]device.Event
		for i := range events {
			events[i], _ = p.Get()
		}
		for _, e := range events {
			_ = p.Put(e)
		}
	}))
	require.NoError(t, p.Close())
}

// TestEventPoolConcurrentSafe: no event has two users at a time.
func TestEventPoolConcurrentSafe(t *testing.T) {
	host := cisterntest.Host(t, 1<<20)
	dev := &eventMaker{Device: host}
	p := device.EventPool{Device: dev}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50_000 {
				e, err := p.Get()
				if err != nil || e.(*madeEvent).owned.Swap(true) {
					t.Error("an event with two owners", err)
					return
				}
				e.(*madeEvent).owned.Store(false)
				if err := p.Put(e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(p.Close(), host.Close()))
	require.Equal(t, dev.made, dev.closed)
}

// BenchmarkEvents measures an event of a pool, and an event that is made and closed.
func BenchmarkEvents(b *testing.B) {
	host := cisterntest.Host(b, 1<<20)
	p := device.EventPool{Device: host}
	b.Run("pool", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e, _ := p.Get()
			_ = p.Put(e)
		}
	})
	b.Run("made", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e, _ := host.NewEvent(device.EventOptions{})
			_ = e.Close()
		}
	})
	require.NoError(b, errors.Join(p.Close(), host.Close()))
}
