package timeline

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestStepsWithDrift: kernels are inside of their steps, and steps don't overlap, however the clock
// is corrected between them.
func TestStepsWithDrift(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	r.tl.kernels.renewal = 1 // each kernel and each end of a step becomes the clock's event
	r.launch("first", b, func() {})
	require.NoError(t, r.tl.Flush(t.Context()))
	for n, drift := range []time.Duration{0, time.Hour, -time.Hour, 0, time.Millisecond} {
		ending := r.tl.Starting(r.stream, int64(n))
		for i := range 3 {
			r.launch(fmt.Sprint("kernel ", i), b, func() { time.Sleep(50 * time.Microsecond) })
			require.NoError(t, r.tl.Flush(t.Context()))
			if i == n%3 {
				r.tl.kernels.clocks[r.Dev.ID()].at += drift
			}
		}
		ending()
	}
	require.NoError(t, errors.Join(r.tl.Close(), b.Free()))
	events := parse(t, r.out.bytes())
	stream := fmt.Sprintf("stream %d", r.stream.ID())
	steps := on(events, r.Dev.Name(), "steps on "+stream, "X")
	require.Equal(t, []string{"step 0", "step 1", "step 2", "step 3", "step 4"}, names(steps))
	for i, s := range steps {
		require.EqualValues(t, i, s.Args["step"])
		require.Greater(t, s.Dur, 149.0, "its kernels slept 150 µs")
	}
	requireInside(t, steps, on(events, r.Dev.Name(), stream, "X")[1:], 3)
}

// TestStepsThatMeetOthers: a step that began while the timeline was off has no extent, nor has one
// that never ended, and two that overlap are on separate lanes.
func TestStepsThatMeetOthers(t *testing.T) {
	r := newRig(t)
	r.tl.SetEnabled(false)
	require.Nil(t, r.tl.Starting(r.stream, 1))
	r.tl.SetEnabled(true)
	outer := r.tl.Starting(r.stream, 2)
	inner := r.tl.Starting(r.stream, 3)
	r.tl.Starting(r.stream, 4)
	b := r.alloc(memcache.WithStep(t.Context(), 3), 100)
	r.launch("kernel", b, func() {})
	outer()
	r.tl.SetEnabled(false)
	inner()
	require.NoError(t, errors.Join(r.tl.Close(), b.Free()))
	events := parse(t, r.out.bytes())
	lane := fmt.Sprintf("steps on stream %d", r.stream.ID())
	require.Equal(t, []string{"step 2"}, names(on(events, r.Dev.Name(), lane, "X")))
	require.Equal(t, []string{"step 3"}, names(on(events, r.Dev.Name(), lane+" (2)", "X")))
}

// TestStepOnFailingClock: an end of a step that can't be placed is left out together with the step,
// and Flush returns the error.
func TestStepOnFailingClock(t *testing.T) {
	r := newRig(t)
	ending := r.tl.Starting(r.stream, 1)
	require.NoError(t, r.tl.Flush(t.Context()))
	k := &r.tl.kernels
	foreign, err := r.Dev.NewEvent(device.EventOptions{}) // is not timed
	require.NoError(t, err)
	require.NoError(t, r.stream.Record(foreign))
	k.add(r.stream, kernel{name: "end of step 1", before: foreign, after: foreign, clock: k.clocks[r.Dev.ID()], step: &extent{number: 1}, last: true})
	require.ErrorContains(t, r.tl.Flush(t.Context()), `the times of kernel "end of step 1"`)
	ending()
	require.NoError(t, r.tl.Flush(t.Context()))

	ending = r.tl.Starting(r.stream, 2)
	start := &k.queues[r.stream.ID()].list[0]
	k.release(*start)
	start.before, err = r.Dev.NewEvent(device.EventOptions{})
	require.NoError(t, errors.Join(err, r.stream.Record(start.before)))
	start.after = start.before
	ending()
	require.ErrorContains(t, r.tl.Flush(t.Context()), `the times of kernel "start of step 2"`)
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	require.Len(t, onName(events, "step 1"), 1)
	require.Empty(t, onName(events, "step 2"))
}
