package transfer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// onceDevice is a device whose events can be made to refuse the next query.
type onceDevice struct {
	device.Device
	refuses *atomic.Bool
}

type onceEvent struct {
	device.Event
	refuses *atomic.Bool
}

func (d onceDevice) NewEvent(o device.EventOptions) (device.Event, error) {
	e, err := d.Device.NewEvent(o)
	return onceEvent{e, d.refuses}, err
}

func (e onceEvent) Query() (bool, error) {
	if e.refuses.CompareAndSwap(true, false) {
		return false, cisterntest.ErrRefused
	}
	return e.Event.Query()
}

func (e onceEvent) Synchronize(ctx context.Context) error {
	if e.refuses.CompareAndSwap(true, false) {
		return cisterntest.ErrRefused
	}
	return e.Event.Synchronize(ctx)
}

// onceStream records the event below a onceEvent.
type onceStream struct{ device.Stream }

func (s onceStream) Record(e device.Event) error { return s.Stream.Record(e.(onceEvent).Event) }

// TestQuestionRefusedOnce: a refused query does not affect the copy, and its buffer can be used
// again.
func TestQuestionRefusedOnce(t *testing.T) {
	r := newRig(t, transfer.Config{})
	refuses := new(atomic.Bool)
	pool, err := transfer.New(onceDevice{r.dev, refuses}, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 64, r.a)
	b, err := pool.Get(t.Context(), 64)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	c, err := pool.H2D(t.Context(), onceStream{r.a}, block, 0, b, 0, 64)
	require.NoError(t, err)
	refuses.Store(true)
	require.False(t, c.Done(), "it has not run")
	refuses.Store(true)
	require.ErrorIs(t, b.Check(), cisterntest.ErrRefused)
	require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
	refuses.Store(true)
	require.ErrorIs(t, c.Wait(t.Context()), cisterntest.ErrRefused)
	open()
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, errors.Join(c.Err(), b.Check(), b.Release(), pool.Close(), block.Free()))
}

// lostEvents is a device whose events can't be queried.
type lostEvents struct{ device.Device }

type lostEvent struct{ device.Event }

func (d lostEvents) NewEvent(o device.EventOptions) (device.Event, error) {
	e, err := d.Device.NewEvent(o)
	return lostEvent{e}, err
}

func (lostEvent) Query() (bool, error)              { return false, cisterntest.ErrRefused }
func (lostEvent) Synchronize(context.Context) error { return cisterntest.ErrRefused }

type lostStream struct{ device.Stream }

func (s lostStream) Record(e device.Event) error { return s.Stream.Record(e.(lostEvent).Event) }

// TestEmptyCacheOfAnEventThatFails: EmptyCache returns the error each time and keeps the memory
// that the copy uses. Close frees it.
func TestEmptyCacheOfAnEventThatFails(t *testing.T) {
	r := newRig(t, transfer.Config{})
	pool, err := transfer.New(lostEvents{r.dev}, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 64, r.a)
	b, err := pool.Get(t.Context(), 64)
	require.NoError(t, err)
	_, err = pool.H2D(t.Context(), lostStream{r.a}, block, 0, b, 0, 64)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	for range 2 {
		require.ErrorIs(t, pool.EmptyCache(t.Context()), cisterntest.ErrRefused)
		require.EqualValues(t, 1, pool.Stats().Pending)
	}
	require.NoError(t, errors.Join(pool.Close(), block.Free()))
	require.Zero(t, pool.Stats().HeldBytes.Current)
}
