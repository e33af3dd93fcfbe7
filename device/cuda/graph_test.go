//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestGraphs runs the suite's tests of captures and graphs, except those with work that waits or
// runs concurrently, on a driver that ends the process on calls that a real driver refuses.
func TestGraphs(t *testing.T) {
	graphs := []string{"replays_captured", "batches", "the_Launch", "random", "streams_and_events", "Launching"}
	captures := []string{"the_order_of", "calls_that_can't", "events_of", "two_captures", "memory_of"}
	out := onProcessor(t, "TestConformance/Graph/^("+strings.Join(graphs, "|")+")")
	require.Equal(t, len(graphs), strings.Count(out, "--- PASS: TestConformance/Graph/"), "%s", out)
	require.Contains(t, out, "a capture of mode 2", "relaxed (CU_STREAM_CAPTURE_MODE_RELAXED)")
	require.NotContains(t, out, "a capture of mode 0")
	require.Equal(t, strings.Count(out, "a capture of mode"), strings.Count(out, "the end of a graph"))
	require.Equal(t, strings.Count(out, "a capture of mode"), strings.Count(out, "the end of an executable graph"))
	out = onProcessor(t, "TestConformance/Capture/^("+strings.Join(captures, "|")+")")
	require.Equal(t, len(captures), strings.Count(out, "--- PASS: TestConformance/Capture/"), "%s", out)
}

// TestGraphUpdate: the graph keeps the memory of its present program, and its module stays loaded.
func TestGraphUpdate(t *testing.T) {
	if os.Getenv(processor) == "" {
		onProcessor(t, "TestGraphUpdate$")
		return
	}
	const n = 64
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	image, err := os.ReadFile("testdata/test.ptx")
	require.NoError(t, err)
	m, err := d.(device.ModuleLoader).LoadModule(image)
	require.NoError(t, err)
	k, err := m.Kernel("addOne")
	require.NoError(t, err)
	var p [2]device.Ptr
	var g [2]device.Graph
	for i := range p {
		p[i], err = d.Alloc(n)
		require.NoError(t, err)
		c := s.(device.GraphCapturer)
		require.NoError(t, c.BeginCapture())
		require.NoError(t, s.Memset(p[i], byte(10*i), n))
		l := overBytes(t, d, "addOne", p[i], n)
		l.Kernel = k
		require.NoError(t, s.Launch(l))
		g[i], err = c.EndCapture()
		require.NoError(t, err)
	}
	require.ErrorIs(t, m.Close(), device.ErrInvalid)
	require.NoError(t, g[0].Update(g[1]))
	require.NoError(t, g[1].Update(g[0]), "which is itself by now")
	require.NoError(t, d.Free(p[0]), "nothing runs on it any more")
	require.NoError(t, g[1].Close())
	require.ErrorIs(t, d.Free(p[1]), device.ErrInvalid)
	require.NoError(t, s.Memset(p[1], 0, n))
	require.NoError(t, g[0].Replay(s))
	host, err := d.AllocPinned(n)
	require.NoError(t, err)
	require.NoError(t, s.CopyD2H(host, p[1]))
	require.NoError(t, s.Synchronize(context.Background()))
	require.EqualValues(t, 11, host[n-1])
	require.ErrorIs(t, m.Close(), device.ErrInvalid)
	require.NoError(t, errors.Join(g[0].Close(), m.Close(), d.Free(p[1]), d.FreePinned(host), s.Close(), d.Close()))
}

// TestDeviceClosesGraphs: it also ends captures, of which nothing is left.
func TestDeviceClosesGraphs(t *testing.T) {
	if os.Getenv(processor) == "" {
		out := onProcessor(t, "TestDeviceClosesGraphs$")
		require.Equal(t, 2, strings.Count(out, "the end of a graph"), out)
		require.Equal(t, 1, strings.Count(out, "the end of an executable graph"), out)
		return
	}
	d := open(t)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	c := s.(device.GraphCapturer)
	require.NoError(t, c.BeginCapture())
	require.NoError(t, s.Memset(p, 1, 64))
	g, err := c.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Replay(s))
	require.NoError(t, c.BeginCapture())
	require.NoError(t, s.Memset(p, 2, 64))
	require.ErrorContains(t, d.Close(), "1 allocations")
	require.True(t, s.Closed())
	require.ErrorIs(t, g.Replay(s), device.ErrClosed)
	_, err = c.EndCapture()
	require.ErrorIs(t, err, device.ErrClosed)
	require.NoError(t, g.Close())
}

// BenchmarkReplay compares 26 small kernels, launched and replayed: until they are queued, and
// until they are done.
func BenchmarkReplay(b *testing.B) {
	const kernels, n = 26, 1024
	d, s := bench(b)
	p, err := d.Alloc(n)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Free(p)) }()
	l := overBytes(b, d, "addOne", p, n)
	launches := func() error { return repeat(kernels, func() error { return s.Launch(l) }) }
	wait := func() error { return s.Synchronize(context.Background()) }
	c := s.(device.GraphCapturer)
	require.NoError(b, c.BeginCapture())
	require.NoError(b, launches())
	g, err := c.EndCapture()
	require.NoError(b, err)
	defer func() { require.NoError(b, g.Close()) }()
	for _, x := range []struct {
		name  string
		queue func() error
	}{{"launched", launches}, {"replayed", func() error { return g.Replay(s) }}} {
		b.Run(x.name+" and waited for", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := errors.Join(x.queue(), wait()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(x.name+" and queued", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := x.queue(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				require.NoError(b, wait())
				b.StartTimer()
			}
		})
	}
}
