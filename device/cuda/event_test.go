//go:build cuda

package cuda_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// TestEventsArePooled: the driver makes only as many events of each kind as are open at a time, and
// a closed handle is refused while its CUevent belongs to another one.
func TestEventsArePooled(t *testing.T) {
	if os.Getenv(processor) == "" {
		out := onProcessor(t, "TestEventsArePooled$")
		require.Equal(t, 3, strings.Count(out, "an event with the flags 2\n"), "untimed (CU_EVENT_DISABLE_TIMING)\n%s", out)
		require.Equal(t, 1, strings.Count(out, "an event with the flags 0\n"), out)
		require.Equal(t, 4, strings.Count(out, "the end of an event\n"), "with the device\n%s", out)
		return
	}
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	made := func(timed bool) device.Event {
		e, err := d.NewEvent(device.EventOptions{Timed: timed})
		require.NoError(t, err)
		require.Equal(t, timed, e.Timed())
		require.NoError(t, s.Record(e))
		return e
	}
	var closed []device.Event
	for range 100 {
		three := []device.Event{made(false), made(false), made(false), made(true)}
		for _, e := range closed {
			_, err := e.Query()
			require.ErrorIs(t, err, device.ErrClosed)
			require.ErrorIs(t, s.Record(e), device.ErrClosed)
			require.ErrorIs(t, s.Wait(e), device.ErrClosed)
			require.NoError(t, e.Close(), "it gives nothing back a second time")
		}
		for _, e := range three {
			done, err := e.Query()
			require.NoError(t, err)
			require.True(t, done)
			require.NoError(t, e.Close())
		}
		closed = three
	}
	if !race.Enabled {
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			e, err := d.NewEvent(device.EventOptions{})
			if err = errors.Join(err, e.Close()); err != nil {
				t.Error(err)
			}
		}), 1.0, "a handle")
	}
	require.NoError(t, errors.Join(s.Close(), d.Close()))
}
