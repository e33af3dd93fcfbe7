package host

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// forked is a graph of two streams: first runs on the replay's stream, then second on a branch.
func forked(t testing.TB, first, second func()) (s *stream, g *graph) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	a, err := d.newStream(device.StreamOptions{})
	require.NoError(t, err)
	b, err := d.newStream(device.StreamOptions{})
	require.NoError(t, err)
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, a.BeginCapture())
	require.NoError(t, a.Launch(&device.Launch{Func: first}))
	require.NoError(t, a.Record(e))
	require.NoError(t, b.Wait(e))
	require.NoError(t, b.Launch(&device.Launch{Func: second}))
	require.NoError(t, b.Record(e))
	require.NoError(t, a.Wait(e))
	made, err := a.EndCapture()
	require.NoError(t, err)
	return a, made.(*graph)
}

// within fails the test if f does not return.
func within(t testing.TB, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		buffer := make([]byte, 1<<20)
		t.Fatalf("it waits for ever:\n%s", buffer[:runtime.Stack(buffer, true)])
	}
}

func TestAKernelEndsTheGoroutineOfAReplay(t *testing.T) {
	ran := false
	s, g := forked(t, runtime.Goexit, func() { ran = true })
	require.NoError(t, g.Replay(s))
	within(t, func() {
		require.ErrorContains(t, s.Synchronize(context.Background()), "runtime.Goexit")
		require.NoError(t, g.Close())
	})
	require.False(t, ran)
}

// TestReplayOnAStreamThatCloses: the branch has its lane already when the stream refuses the first
// lane.
func TestReplayOnAStreamThatCloses(t *testing.T) {
	ran := 0
	s, g := forked(t, func() { ran++ }, func() { ran++ })
	require.NoError(t, g.Replay(s))
	require.NoError(t, s.Close())
	require.ErrorIs(t, g.Replay(s), device.ErrClosed)
	told, open, queued := g.queue(s) // as if it had just been closed
	require.True(t, open)
	require.False(t, queued)
	require.Nil(t, told)
	within(t, func() { require.NoError(t, g.Close()) })
	require.Equal(t, 2, ran, "of the first replay")
}

// TestGraphsOnForeignStreams: streams of another backend or device, and nil, are refused, and no
// mark is before them. Graphs of another device are refused for an update.
func TestGraphsOnForeignStreams(t *testing.T) {
	s, g := forked(t, func() {}, func() {})
	other, err := null.New(null.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	foreign, err := other.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	second, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	others, err := second.newStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	mark := s.CaptureMark()
	require.True(t, mark.Before(s))
	for _, on := range []device.Stream{nil, (*stream)(nil), foreign, others} {
		require.ErrorIs(t, g.Replay(on), device.ErrInvalid)
		require.False(t, mark.Before(on))
	}
	_, err = s.EndCapture()
	require.NoError(t, err)
	_, theirs := forked(t, func() {}, func() {})
	for _, with := range []device.Graph{nil, (*graph)(nil), theirs} {
		require.ErrorIs(t, g.Update(with), device.ErrInvalid)
	}
	require.NoError(t, errors.Join(theirs.Close(), g.Close(), second.Close(), other.Close()))
}

func TestReplaysForgetThoseBefore(t *testing.T) {
	s, g := forked(t, func() {}, func() {})
	other, err := s.dev.newStream(device.StreamOptions{})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, g.Replay(s))
		require.NoError(t, g.Replay(other))
	}
	last := g.last
	require.NoError(t, g.Close())
	require.Nil(t, last.before, "or each would keep the one before, all of them in the end")
}

// BenchmarkReplay compares 26 small kernels, launched and replayed, until they are done.
func BenchmarkReplay(b *testing.B) {
	const kernels = 26
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Close()) }()
	s, err := d.newStream(device.StreamOptions{})
	require.NoError(b, err)
	p, err := d.Alloc(1024)
	require.NoError(b, err)
	bytes, err := d.Bytes(p, 1024)
	require.NoError(b, err)
	r := []device.Range{{Ptr: p, Bytes: 1024}}
	launch := &device.Launch{Name: "add one", Reads: r, Writes: r, Func: func() {
		for i := range bytes {
			bytes[i]++
		}
	}}
	launches := func() error {
		for range kernels {
			if err := s.Launch(launch); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(b, s.BeginCapture())
	require.NoError(b, launches())
	g, err := s.EndCapture()
	require.NoError(b, err)
	for _, x := range []struct {
		name  string
		queue func() error
	}{{"launched", launches}, {"replayed", func() error { return g.Replay(s) }}} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := x.queue(); err != nil {
					b.Fatal(err)
				}
				if err := s.Synchronize(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	require.NoError(b, g.Close())
	require.NoError(b, d.Free(p))
}
