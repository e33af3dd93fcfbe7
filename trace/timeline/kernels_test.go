package timeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/cisterntest"
	"github.com/cistern-ml/cistern/trace"
)

// TestRenewal: the clock's event is a recent one, and times go on from it.
func TestRenewal(t *testing.T) {
	r := newRig(t)
	r.tl.kernels.renewal = 1
	b := r.alloc(t.Context(), 100)
	var clocks []device.Event
	for i := range 5 {
		r.launch(fmt.Sprint(i), b, func() { time.Sleep(time.Microsecond) })
		require.NoError(t, r.tl.Flush(t.Context()))
		c := r.tl.kernels.clocks[r.Dev.ID()]
		require.NotContains(t, clocks, c.event)
		clocks = append(clocks, c.event)
	}
	require.NoError(t, b.Free())
	require.NoError(t, r.tl.Close())
	for _, e := range clocks {
		_, err := e.Query()
		require.ErrorIs(t, err, device.ErrClosed, "no event is left")
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4"}, names(on(parse(t, r.out.bytes()), r.Dev.Name(), fmt.Sprintf("stream %d", r.stream.ID()), "X")))
}

// TestQueued: a stream does one thing after the other, whatever two goroutines have between their events.
func TestQueued(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	g := tl.lanes.of("gpu", "stream 1")
	for _, c := range [][4]time.Duration{{5, 10, 5, 10}, {7, 8, 10, 10}, {9, 30, 10, 30}, {31, 20, 31, 31}} {
		_, began, ended := g.queued(c[0], c[1])
		require.Equal(t, [2]time.Duration{c[2], c[3]}, [2]time.Duration{began, ended})
	}
	require.NoError(t, tl.Close())
}

// TestHeldStream: a kernel that is not done holds nothing up but Flush, until its context ends.
func TestHeldStream(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	r.launch("first", b, func() {})
	release := cisterntest.Hold(t, r.stream)
	r.launch("held", b, func() {})
	other, err := r.Dev.NewStream(device.StreamOptions{Launching: r.tl.Launching})
	require.NoError(t, err)
	require.NoError(t, other.Launch(&device.Launch{Name: "other", Func: func() {}}))
	require.NoError(t, other.Synchronize(t.Context()))
	r.tl.Step(trace.StepProfile{Step: 1, Start: time.Now()})
	require.NoError(t, r.tl.file.flush(t.Context()))
	require.Len(t, onName(parse(t, append(r.out.bytes(), ']')), "other"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.tl.Flush(ctx), context.Canceled)
	release()
	require.NoError(t, r.tl.Flush(t.Context()))
	seen := map[string]bool{}
	for _, e := range parse(t, append(r.out.bytes(), ']')) {
		seen[e.Name] = true
	}
	for _, name := range []string{"first", "held", "other"} {
		require.True(t, seen[name], "%v", slices.Collect(maps.Keys(seen)))
	}
	require.NoError(t, b.Free())
	require.NoError(t, other.Close())
}
