package trace

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
)

// TestStarting: events that the hook queues at both ends of a step are inside of its device time.
// It is called once at each end, and never without a stream.
func TestStarting(t *testing.T) {
	s := stacktest.New(t, stacktest.Config{})
	var events []device.Event
	var step *Step
	mark := func(on device.Stream) {
		require.Equal(t, s.Stream, on)
		e, err := s.Dev.NewEvent(device.EventOptions{Timed: true})
		require.NoError(t, errors.Join(err, on.Record(e)))
		events = append(events, e)
	}
	config := ProfilerConfig{Cache: s.Cache, Stream: s.Stream, Starting: func(on device.Stream, number int64) func() {
		mark(on)
		if number == 2 {
			return nil
		}
		return func() {
			require.Nil(t, step.to, "the step's last event comes later")
			mark(on)
		}
	}}
	p, err := NewProfiler(config)
	require.NoError(t, err)
	_, step = p.StartStep(t.Context(), 1)
	require.Len(t, events, 1)
	step.End()
	step.End()
	require.Len(t, events, 2)
	_, second := p.StartStep(t.Context(), 2)
	second.End()
	require.Len(t, events, 3)
	require.NoError(t, p.Close())
	between, err := s.Dev.Elapsed(events[0], events[1])
	require.NoError(t, err)
	require.LessOrEqual(t, between, step.Profile().DeviceTime)

	config.Stream = nil
	p, err = NewProfiler(config)
	require.NoError(t, err)
	_, step = p.StartStep(t.Context(), 3)
	step.End()
	require.Len(t, events, 3)
	require.NoError(t, p.Close())
	for _, e := range events {
		require.NoError(t, e.Close())
	}
}
