//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// placed is the environment of tests of places: two unused streams on the driver of
// testdata/driver.c.
type placed struct {
	*testing.T
	d      device.Device
	s, of  device.Stream
	memory device.Ptr
	host   []byte
}

// heldBytes is the value and number of bytes of a Memset that stops a stream of that driver until
// the first byte changes.
const heldBytes = 0xEE

func (p *placed) event() device.Event {
	e, err := p.d.NewEvent(device.EventOptions{})
	require.NoError(p, err)
	return e
}

func (p *placed) record(s device.Stream, list ...device.Event) {
	for _, e := range list {
		require.NoError(p, s.Record(e))
	}
}

func (p *placed) query(want bool, list ...device.Event) {
	p.Helper()
	for _, e := range list {
		done, err := e.Query()
		require.NoError(p, err)
		require.Equal(p, want, done)
	}
}

func (p *placed) work(s device.Stream) { require.NoError(p, s.Memset(p.memory+1024, 1, 64)) }

// hold stops s. The function that it returns releases it.
func (p *placed) hold(s device.Stream) (release func()) {
	require.NoError(p, s.Memset(p.memory, heldBytes, heldBytes))
	release = sync.OnceFunc(func() {
		other, err := p.d.NewStream(device.StreamOptions{})
		require.NoError(p, err)
		require.NoError(p, errors.Join(other.Memset(p.memory, 0, 1), other.Close()))
	})
	p.Cleanup(release)
	return release
}

// operations queue an operation on p.s.
var operations = map[string]func(p *placed) error{
	"Memset":  func(p *placed) error { return p.s.Memset(p.memory, 1, 64) },
	"CopyH2D": func(p *placed) error { return p.s.CopyH2D(p.memory, p.host) },
	"CopyD2H": func(p *placed) error { return p.s.CopyD2H(p.host, p.memory) },
	"CopyD2D": func(p *placed) error { return p.s.CopyD2D(p.memory, p.memory+512, 64) },
	"Copy2D": func(p *placed) error {
		return p.s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p.memory, DstPitch: 8, SrcHost: p.host, SrcPitch: 8})
	},
	"CopyH2DBatch": func(p *placed) error {
		return p.s.(device.BatchCopier).CopyH2DBatch([]device.Ptr{p.memory}, [][]byte{p.host})
	},
	"CopyD2HBatch": func(p *placed) error {
		return p.s.(device.BatchCopier).CopyD2HBatch([][]byte{p.host}, []device.Ptr{p.memory})
	},
	"Launch": func(p *placed) error { return p.s.Launch(overBytes(p, p.d, "addOne", p.memory, 64)) },
	"Wait": func(p *placed) error {
		e := p.event()
		p.work(p.of)
		p.record(p.of, e)
		return p.s.Wait(e)
	},
	"Replay": func(p *placed) error {
		c := p.of.(device.GraphCapturer)
		require.NoError(p, c.BeginCapture())
		p.work(p.of)
		g, err := c.EndCapture()
		require.NoError(p, err)
		defer func() { require.NoError(p, g.Close()) }()
		fmt.Fprintln(os.Stderr, "from here")
		return g.Replay(p.s)
	},
}

// scenes are sequences of calls on events, and the calls that must reach the driver.
var scenes = map[string]struct {
	records, queries, waits int
	play                    func(p *placed)
}{
	"a new stream is done": {0, 0, 0, func(p *placed) {
		e := p.event()
		p.record(p.s, e)
		p.query(true, e)
		require.NoError(p, p.of.Wait(e))
		require.NoError(p, e.Synchronize(context.Background()))
	}},
	"what is known is not asked again": {1, 1, 0, func(p *placed) {
		e, f := p.event(), p.event()
		p.work(p.s)
		p.record(p.s, e)
		p.query(true, e)
		p.record(p.s, e, f)
		p.query(true, e, f)
		require.NoError(p, p.of.Wait(e))
	}},
	"a later event of the same place, or an earlier one": {3, 1, 0, func(p *placed) {
		a, b, c := p.event(), p.event(), p.event()
		p.work(p.s)
		p.record(p.s, a)
		p.work(p.s)
		p.record(p.s, b, c)
		p.query(true, b, c, a)
	}},
	"an earlier event says nothing of a later one": {2, 3, 1, func(p *placed) {
		a, b := p.event(), p.event()
		p.work(p.s)
		p.record(p.s, a)
		release := p.hold(p.s)
		p.record(p.s, b)
		p.query(true, a)
		p.query(false, b)
		require.NoError(p, p.of.Wait(b))
		release()
		p.query(true, b)
	}},
	"a stream is waited for": {0, 0, 0, func(p *placed) {
		e := p.event()
		p.work(p.s)
		require.NoError(p, p.s.Synchronize(context.Background()))
		p.record(p.s, e)
		p.query(true, e)
		p.work(p.s)
		done, err := p.s.Query()
		require.NoError(p, err)
		require.True(p, done)
		p.record(p.s, e)
		p.query(true, e)
	}},
	"an event is waited for": {1, 1, 0, func(p *placed) {
		e, f := p.event(), p.event()
		release := p.hold(p.s)
		p.record(p.s, e)
		waited := make(chan error)
		go func() { waited <- e.Synchronize(context.Background()) }()
		release()
		require.NoError(p, <-waited)
		p.record(p.s, f)
		p.query(true, e, f)
	}},
	"an event moves to a stream that is done, and back": {2, 1, 1, func(p *placed) {
		e := p.event()
		release := p.hold(p.s)
		p.record(p.s, e)
		p.record(p.of, e)
		p.query(true, e)
		p.record(p.s, e)
		p.query(false, e)
		require.NoError(p, p.of.Wait(e))
		release()
	}},
	"a timed event has a time": {2, 1, 0, func(p *placed) {
		e, err := p.d.NewEvent(device.EventOptions{Timed: true})
		require.NoError(p, err)
		p.record(p.s, e, e)
		p.work(p.s)
		require.NoError(p, p.s.Synchronize(context.Background()))
		p.query(true, e)
	}},
	"a timed event on a stream without work": {1, 1, 0, func(p *placed) {
		e, err := p.d.NewEvent(device.EventOptions{Timed: true})
		require.NoError(p, err)
		p.record(p.s, e)
		p.query(true, e)
	}},
	"a capture": {3, 0, 0, func(p *placed) {
		e, inside := p.event(), p.event()
		p.record(p.s, e)
		c := p.s.(device.GraphCapturer)
		require.NoError(p, c.BeginCapture()) // one record
		require.ErrorIs(p, p.s.Wait(e), device.ErrCapturing)
		p.record(p.s, inside, e)
		_, err := inside.Query()
		require.ErrorIs(p, err, device.ErrCapturing)
		g, err := c.EndCapture()
		require.NoError(p, err)
		require.NoError(p, g.Close())
	}},
}

// TestKnownPlaces: the driver is not called for events that are known to be complete, and is called
// for all others.
func TestKnownPlaces(t *testing.T) {
	if os.Getenv(processor) == "" {
		out := onProcessor(t, "TestKnownPlaces$")
		for name := range operations {
			part := phase(t, out, name)
			if _, after, ok := strings.Cut(part, "from here\n"); ok {
				part = after
			}
			_, part, _ = strings.Cut(part, "queued\n")
			require.Equal(t, "a record of an event\na query of an event\n", part, "after %s", name)
		}
		for name, x := range scenes {
			part := phase(t, out, name)
			require.Equal(t, x.records, strings.Count(part, "a record of an event\n"), "records: %s\n%s", name, part)
			require.Equal(t, x.queries, strings.Count(part, "a query of an event\n"), "queries: %s\n%s", name, part)
			require.Equal(t, x.waits, strings.Count(part, "a wait for an event\n"), "waits: %s\n%s", name, part)
		}
		return
	}
	for name, queue := range operations {
		play(t, name, func(p *placed) {
			require.NoError(p, queue(p))
			fmt.Fprintln(os.Stderr, "queued")
			e := p.event()
			p.record(p.s, e)
			p.query(true, e)
		})
	}
	for name, x := range scenes {
		play(t, name, x.play)
	}
}

// play runs a scene on a new device, and marks the driver's output.
func play(t *testing.T, name string, scene func(p *placed)) {
	t.Run(name, func(t *testing.T) {
		p := &placed{T: t, d: open(t)}
		var err error
		p.s, err = p.d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		p.of, err = p.d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		p.memory, err = p.d.Alloc(4096)
		require.NoError(t, err)
		p.host, err = p.d.AllocPinned(64)
		require.NoError(t, err)
		fmt.Fprintf(os.Stderr, "begin %q\n", name)
		scene(p)
		fmt.Fprintf(os.Stderr, "end %q\n", name)
		require.NoError(t, errors.Join(p.s.Close(), p.of.Close(), p.d.Free(p.memory), p.d.FreePinned(p.host), p.d.Close()))
	})
}

// phase returns the output between marks, without the creation and destruction of events.
func phase(t *testing.T, out, name string) string {
	_, part, ok := strings.Cut(out, fmt.Sprintf("begin %q\n", name))
	require.True(t, ok, name)
	part, _, ok = strings.Cut(part, fmt.Sprintf("end %q\n", name))
	require.True(t, ok, name)
	return strings.ReplaceAll(part, "an event with the flags 2\n", "")
}
