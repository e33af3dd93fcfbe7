package transfer_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// eventCounter is a device that counts the events that it made and that are open.
type eventCounter struct {
	device.Device
	mu     sync.Mutex
	events []device.Event
}

func (d *eventCounter) NewEvent(o device.EventOptions) (device.Event, error) {
	e, err := d.Device.NewEvent(o)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, e)
	return e, err
}

// open returns the number of open events.
func (d *eventCounter) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = slices.DeleteFunc(d.events, func(e device.Event) bool {
		_, err := e.Query()
		return errors.Is(err, device.ErrClosed)
	})
	return len(d.events)
}

// Events are closed, even those of copies that are never queried, and after Close none is open.
func TestEventsAreClosed(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds the garbage collector closes events")
	}
	r := newRig(t, transfer.Config{})
	dev := &eventCounter{Device: r.dev}
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 64, r.a)
	b, err := pool.Get(t.Context(), 64)
	require.NoError(t, err)
	other, err := pool.Get(t.Context(), 64)
	require.NoError(t, err)
	for i := range 5000 {
		_, err := pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
		require.NoError(t, err)
		c, err := pool.D2H(t.Context(), r.b, other, 0, block, 0, 64)
		require.NoError(t, err)
		if i%100 == 0 {
			require.NoError(t, c.Wait(t.Context()))
			require.Less(t, dev.open(), 2000, "a stream holds 1,024 operations at most")
		}
		_, err = pool.Upload(t.Context(), r.a, block, 0, make([]byte, 64))
		require.NoError(t, err)
	}
	require.NoError(t, b.Release())
	require.NoError(t, other.Release())
	require.NoError(t, pool.Close())
	require.Zero(t, dev.open())
	require.NoError(t, block.Free())
}

// An event that was waited for is closed at once.
func TestEventOfACopyThatWasWaitedFor(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds the garbage collector closes events")
	}
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	b := r.get(t, 64)
	for range 50 {
		c, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
		require.NoError(t, err)
		require.NoError(t, c.Wait(t.Context()))
	}
	require.LessOrEqual(t, dev.events, 2)
	require.NoError(t, b.Release())
	require.NoError(t, block.Free())
}

// Events that could not be recorded are closed.
func TestEventsOfFailedRecords(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	for range 20 {
		_, err := r.pool.Fill(t.Context(), cisterntest.Unrecordable{Stream: r.a}, block, 0, 64, 1)
		require.ErrorIs(t, err, cisterntest.ErrRefused)
	}
	require.Zero(t, dev.events)
	require.NoError(t, block.Free())
}

// A copy needs no wait for earlier copies on its own stream.
func TestCopyOnOneStreamNeedsNoWait(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	for range 3 {
		_, err := r.pool.D2H(t.Context(), r.a, b, 0, block, 0, 64)
		require.NoError(t, err)
	}
	require.Len(t, raw(r.a).queue, 6, "three copies and their events")
	other, side := r.alloc(t, 64, r.a), func(b memcache.Block) transfer.Side {
		return transfer.Side{Pool: r.pool, Stream: r.a, Block: b}
	}
	_, err := transfer.CopyPeer(t.Context(), side(other), side(block), 64)
	require.NoError(t, err)
	require.Len(t, raw(r.a).queue, 9, "a copy between two events")
	require.NoError(t, other.Free())
	require.NoError(t, b.Release())
	require.NoError(t, block.Free())
}
