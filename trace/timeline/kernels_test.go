package timeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/trace"
)

// TestRenewal: the clock's event is a recent one, and times continue from it.
func TestRenewal(t *testing.T) {
	r := newRig(t)
	r.tl.kernels.renewal = 1
	b := r.alloc(t.Context(), 100)
	var clocks []device.Event
	for i := range 5 {
		r.launch(fmt.Sprint(i), b, func() { time.Sleep(100 * time.Microsecond) })
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
	kernels := on(parse(t, r.out.bytes()), r.Dev.Name(), fmt.Sprintf("stream %d", r.stream.ID()), "X")
	require.Equal(t, []string{"0", "1", "2", "3", "4"}, names(kernels))
	for _, k := range kernels {
		require.Greater(t, k.Dur, 99.0, "it slept 100 µs")
	}
}

// TestQueued: the kernels of a stream are in sequence, even if the events of two goroutines enclose
// each other's kernels.
func TestQueued(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	g := tl.lanes.of("gpu", "stream 1")
	for _, c := range [][4]time.Duration{{5, 10, 5, 10}, {7, 8, 10, 11}, {9, 30, 11, 30}, {31, 20, 31, 32}} {
		_, began, ended := g.queued(c[0], c[1], c[0])
		require.Equal(t, [2]time.Duration{c[2], c[3]}, [2]time.Duration{began, ended})
	}

	// Host times of a clock that is corrected: the duration of a span is kept, less its overlap
	// with the previous one by the clock itself.
	for _, c := range [][5]time.Duration{{40, 50, 140, 40, 50}, {35, 45, 145, 50, 55}, {46, 50, 156, 55, 59}, {60, 65, 170, 60, 65}, {100, 110, 165, 110, 111}, {120, 121, 180, 120, 121}} {
		_, began, ended := g.queued(c[0], c[1], c[2])
		require.Equal(t, [2]time.Duration{c[3], c[4]}, [2]time.Duration{began, ended}, c)
	}
	require.NoError(t, tl.Close())
}

// TestHeldStream: an incomplete kernel delays only Flush, until its context ends.
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
	<-r.tl.kernels.clocks[r.Dev.ID()].placed // its event was complete before the stream was held
	r.tl.Step(trace.StepProfile{Step: 1, Start: time.Now()})
	require.NoError(t, r.tl.file.flush(t.Context()))
	require.Len(t, kernelsOf(parse(t, append(r.out.bytes(), ']')), "other"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.tl.Flush(ctx), context.Canceled)
	release()
	require.NoError(t, r.tl.Flush(t.Context()))
	seen := map[string]bool{}
	for _, e := range parse(t, append(r.out.bytes(), ']')) {
		seen[e.Name] = seen[e.Name] || e.Kind == "kernel"
	}
	for _, name := range []string{"first", "held", "other"} {
		require.True(t, seen[name], "%v", slices.Collect(maps.Keys(seen)))
	}
	require.NoError(t, b.Free())
	require.NoError(t, other.Close())
}

// TestFirstLaunch: the first launch on a device does not wait for the stream's earlier work, which
// this goroutine releases later.
func TestFirstLaunch(t *testing.T) {
	r := newRig(t)
	release := cisterntest.Hold(t, r.Stream) // which the timeline does not see
	launched := r.tl.Launching(r.Stream, "first")
	require.NotNil(t, launched)
	launched(nil)
	r.tl.Step(trace.StepProfile{Step: 1, Start: time.Now()}) // finds no clock yet
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.tl.Flush(ctx), context.Canceled)
	before := r.tl.now()
	release()
	require.NoError(t, r.tl.Flush(t.Context()))
	require.NoError(t, r.tl.Close())
	first := kernelsOf(parse(t, r.out.bytes()), "first")
	require.Len(t, first, 1)
	require.GreaterOrEqual(t, first[0].TS, float64(before)/1e3-1e-3, "it began when the stream was released")
}

// TestCloseWithoutKernels: a clock that no kernel needs is not waited for, and its event is closed.
func TestCloseWithoutKernels(t *testing.T) {
	r := newRig(t)
	release := cisterntest.Hold(t, r.Stream)
	r.tl.Launching(r.Stream, "refused")(errors.New("refused"))
	c := r.tl.kernels.clocks[r.Dev.ID()]
	require.NotNil(t, c)
	require.NoError(t, r.tl.Close())
	require.True(t, c.failed.Load())
	require.Nil(t, c.event)
	release()
}

// TestClosedStreams: a drained stream leaves no state.
func TestClosedStreams(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	for range 5 {
		s, err := r.Dev.NewStream(device.StreamOptions{Launching: r.tl.Launching})
		require.NoError(t, err)
		if _, ok := r.Dev.(device.HostVisible); !ok {
			t.Skip("the kernels are Go functions")
		}
		require.NoError(t, s.Launch(&device.Launch{Name: "k", Func: func() {}}))
		require.NoError(t, s.Synchronize(t.Context()))
		require.NoError(t, s.Close())
	}
	require.Len(t, r.tl.kernels.queues, 5)
	require.NoError(t, r.tl.Flush(t.Context()))
	require.Empty(t, r.tl.kernels.queues)
	require.NoError(t, b.Free())
}

// TestCorrectedKernels: they keep their durations, although each shows again that the clock is
// ahead.
func TestCorrectedKernels(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	r.launch("first", b, func() {})
	require.NoError(t, r.tl.Flush(t.Context()))
	k := &r.tl.kernels
	k.drain <- struct{}{}
	c := k.clocks[r.Dev.ID()]
	c.at += time.Hour
	<-k.drain
	for i := range 3 {
		r.launch(fmt.Sprint(i), b, func() { time.Sleep(2 * time.Millisecond) })
	}
	require.NoError(t, r.Dev.Synchronize(t.Context()))
	require.NoError(t, r.tl.Flush(t.Context()))
	require.NoError(t, b.Free())
	require.NoError(t, r.tl.Close())
	kernels := on(parse(t, r.out.bytes()), r.Dev.Name(), fmt.Sprintf("stream %d", r.stream.ID()), "X")
	require.Len(t, kernels, 4)
	for i, k := range kernels[1:] {
		require.Greater(t, k.Dur, 1999.0, "it slept 2 ms")
		require.GreaterOrEqual(t, k.TS, kernels[i].TS+kernels[i].Dur-1e-3)
	}
	require.Less(t, kernels[3].TS, float64(time.Minute.Microseconds()), "the clock is put right")
}

// TestCorrection: a clock is corrected by the amount that is impossible, and no more.
func TestCorrection(t *testing.T) {
	for _, c := range []struct{ from, to, launched, found, want time.Duration }{
		{from: 10, to: 20, launched: 5, found: 30},
		{from: 10, to: 20, launched: 10, found: 20},
		{from: 10, to: 20, launched: 5, found: 17, want: -3},
		{from: 10, to: 20, launched: 14, found: 30, want: 4},
		{from: 10, to: 20, launched: 14, found: 22, want: 2}, // found done in any case
	} {
		require.Equal(t, c.want, correction(reading{from: c.from, to: c.to}, c.launched, c.found), c)
	}
}

// TestDrift: each kernel corrects a device's clock that runs at a wrong speed.
func TestDrift(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	r.launch("first", b, func() {})
	require.NoError(t, r.tl.Flush(t.Context()))
	c := r.tl.kernels.clocks[r.Dev.ID()]
	for i, drift := range []time.Duration{time.Hour, -time.Hour} {
		c.at += drift
		from := r.tl.now()
		name := fmt.Sprint("drifted ", i)
		r.launch(name, b, func() {})
		require.NoError(t, r.tl.Flush(t.Context()))
		to := r.tl.now()
		k := kernelsOf(parse(t, append(r.out.bytes(), ']')), name)
		require.Len(t, k, 1)
		require.GreaterOrEqual(t, k[0].TS, float64(from)/1e3-1e-3)
		require.LessOrEqual(t, k[0].TS+k[0].Dur, float64(to)/1e3+1e-3)
	}
	require.NoError(t, b.Free())
}
