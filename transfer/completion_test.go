package transfer

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// askedEvent is complete. During a query or a wait it lets other goroutines query first.
type askedEvent struct {
	device.Event
	t      *testing.T
	others []func()
	err    error
	closed int
}

func (e *askedEvent) ask() error {
	require.Zero(e.t, e.closed, "a closed event is asked")
	if len(e.others) > 0 {
		other := e.others[0]
		e.others = e.others[1:]
		other()
	}
	require.Zero(e.t, e.closed, "an event is closed while somebody asks it")
	return e.err
}

func (e *askedEvent) Query() (bool, error)              { err := e.ask(); return err == nil, err }
func (e *askedEvent) Synchronize(context.Context) error { return e.ask() }
func (e *askedEvent) Close() error                      { e.closed++; return nil }
func (*recordingStream) ID() uint64                     { return 1 }
func (*recordingStream) Record(device.Event) error      { return nil }
func (s *recordingStream) Wait(ev device.Event) error   { s.waits++; return ev.(*askedEvent).ask() }

// recordingStream records events, and counts those that it waits for.
type recordingStream struct {
	device.Stream
	waits int
}

// Goroutines that find a completion done at the same time, by a query or a wait, close its event
// once, and none of them uses it afterwards.
func TestCompletionSeenByManyAtOnce(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds every holder asks the event itself")
	}
	for _, failure := range []error{nil, fmt.Errorf("the device is lost: %w", device.ErrSticky)} {
		done := func(c *completion) {
			ok, err := c.done()
			require.True(t, ok)
			require.Equal(t, failure, err)
		}
		wait := func(c *completion) { require.Equal(t, failure, c.wait(t.Context())) }
		order := func(c *completion) {
			s := &otherStream{}
			if err := c.orderBefore(s); s.waits > 0 {
				require.Equal(t, failure, err)
			}
		}
		ways := []func(*completion){done, wait, order}
		for mask := range 27 {
			ev := &askedEvent{t: t, err: failure}
			c, err := (&Pool{}).record(&recordingStream{}, ev)
			require.NoError(t, err)
			for _, way := range []func(*completion){ways[mask%3], ways[mask/3%3]} {
				ev.others = append(ev.others, func() { way(c) })
			}
			ways[mask/9](c)
			done(c)
			require.Equal(t, 1, ev.closed, "mask %d", mask)
			done(c)
			wait(c)
			s := &otherStream{}
			require.NoError(t, c.orderBefore(s))
			require.Zero(t, s.waits, "a stream waits for what is complete")
			require.Equal(t, 1, ev.closed, "mask %d", mask)
		}
	}
}

// otherStream is a stream on which the completion was not recorded.
type otherStream struct{ recordingStream }

func (*otherStream) ID() uint64 { return 2 }
