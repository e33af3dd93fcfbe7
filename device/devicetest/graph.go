package devicetest

import (
	"errors"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var graphTests = []test{
	{"replays captured work, which did not run before", func(f *fixture) {
		const n = 300
		s, p, q, up, down := f.stream(), f.alloc(n), f.alloc(n), f.pinned(n), f.pinned(n)
		registered := make([]byte, n)
		require.NoError(f, f.dev.Register(registered))
		f.cleanup(func() error { return f.dev.Unregister(registered) })
		f.fill(s, q, n, 1)
		f.synchronize(s)
		clear(down)
		g := f.captured(s, func() {
			require.NoError(f, s.CopyH2D(p, up))
			f.addOne(s, p, n)
			require.NoError(f, s.CopyD2D(q, p, n/2))
			require.NoError(f, s.CopyD2H(down, q))
			require.NoError(f, s.Copy2D(&device.Copy2D{Width: 3, Height: 5, DstHost: registered, DstPitch: 10, Src: q, SrcPitch: 3}))
			require.NoError(f, s.Memset(q+n/2, 7, n/2))
		})
		require.Equal(f, 6, g.Nodes())
		require.Equal(f, f.dev.ID(), g.Device().ID())
		f.same(filled(n, 0), down)
		f.same(filled(n, 1), f.read(s, q, n))
		for i := range byte(5) {
			copy(up, filled(n, 10*i))
			after := byte(1)
			if i > 0 {
				after = 7
			}
			require.NoError(f, g.Replay(s))
			f.synchronize(s)
			f.same(append(filled(n/2, 10*i+1), filled(n/2, after)...), down)
			f.same(append(filled(n/2, 10*i+1), filled(n/2, 7)...), f.read(s, q, n))
			f.same(filled(3, 10*i+1), registered[40:43])
			f.same(filled(7, 0), registered[43:50])
		}
	}},
	{"notifies of its replays", func(f *fixture) {
		const n = 16
		s, other, p, q := f.stream(), f.stream(), f.alloc(n), f.alloc(n)
		notifier, ok := s.(device.ReplayNotifier)
		if !ok {
			f.Skip("the streams are no device.ReplayNotifier")
		}
		var told []string
		tell := func(what string) func() { return func() { told = append(told, what) } }
		require.False(f, notifier.OnReplay(tell("never")), "it is not captured")
		e := f.event(false)
		g := f.captured(s, func() {
			require.False(f, notifier.OnReplay(nil))
			require.True(f, notifier.OnReplay(tell("a")))
			f.addOne(s, p, n)
			require.False(f, other.(device.ReplayNotifier).OnReplay(tell("never")), "it has not joined")
			require.NoError(f, s.Record(e))
			require.NoError(f, other.Wait(e))
			require.True(f, other.(device.ReplayNotifier).OnReplay(tell("b")))
			require.NoError(f, other.Record(e))
			require.NoError(f, s.Wait(e))
		})
		with := f.captured(s, func() {
			require.True(f, notifier.OnReplay(tell("c")))
			f.addOne(s, q, n)
			require.NoError(f, s.Record(e))
			require.NoError(f, other.Wait(e))
			require.NoError(f, other.Record(e))
			require.NoError(f, s.Wait(e))
		})
		require.False(f, notifier.OnReplay(tell("never")), "it is captured no more")
		require.Empty(f, told)
		require.NoError(f, g.Replay(s))
		require.Equal(f, []string{"a", "b"}, told)
		require.NoError(f, g.Replay(other))
		require.Equal(f, []string{"a", "b", "a", "b"}, told)
		require.Error(f, g.Replay(nil))
		require.NoError(f, g.Update(with))
		told = nil
		require.NoError(f, g.Replay(s))
		require.Equal(f, []string{"c"}, told, "those of the other one")
		f.synchronize(s)
		f.synchronize(other)
		require.NoError(f, g.Close())
		require.ErrorIs(f, g.Replay(s), device.ErrClosed)
		require.Equal(f, []string{"c"}, told)
	}},
	{"batches are captured", func(f *fixture) {
		s, batch := f.batch()
		const n, each = 200, 16
		p, up, down := f.alloc(n*each), f.pinned(n*each), f.pinned(n*each)
		var dev []device.Ptr
		var src, dst [][]byte
		for i := range n {
			dev, src, dst = append(dev, p+device.Ptr(i*each)), append(src, up[i*each:(i+1)*each]), append(dst, down[(n-1-i)*each:(n-i)*each])
		}
		g := f.captured(s, func() {
			require.NoError(f, batch.CopyH2DBatch(dev, src))
			f.addOne(s, p, n*each)
			require.NoError(f, batch.CopyD2HBatch(dst, dev))
		})
		clear(dev)
		clear(src)
		clear(dst)
		for i := range n {
			copy(up[i*each:], filled(each, byte(i)))
		}
		require.NoError(f, g.Replay(s))
		f.synchronize(s)
		for i := range n {
			f.same(filled(each, byte(i)+1), down[(n-1-i)*each:(n-i)*each])
		}
	}},
	{"the Launch may be reused as soon as it was captured", func(f *fixture) {
		const n = 64
		s, p, q := f.stream(), f.alloc(n), f.alloc(n)
		f.fill(s, q, n, 9)
		f.synchronize(s)
		g := f.captured(s, func() {
			l := f.Fill(f, f.dev, p, n, 1)
			require.NoError(f, s.Launch(l))
			next := f.Fill(f, f.dev, q, n, 2)
			next.Brief = true
			clear(l.Args)
			clear(l.Reads)
			clear(l.Writes)
			*l = *next
			require.NoError(f, s.Launch(l))
			*l = device.Launch{}
		})
		f.same(filled(n, 9), f.read(s, q, n))
		require.NoError(f, g.Replay(s))
		f.same(filled(n, 1), f.read(s, p, n))
		f.same(filled(n, 2), f.read(s, q, n))
	}},
	{"a replay keeps its place in the stream", func(f *fixture) {
		const n = 64
		s, p := f.stream(), f.alloc(n)
		g := f.captured(s, func() {
			f.addOne(s, p, n)
			f.addOne(s, p, n)
		})
		release := f.block(s)
		require.NoError(f, s.Memset(p, 10, n))
		require.NoError(f, g.Replay(s))
		f.addOne(s, p, n/2)
		require.NoError(f, g.Replay(s))
		require.False(f, f.done(s), "Replay doesn't wait for the work")
		release()
		f.same(append(filled(n/2, 15), filled(n/2, 14)...), f.read(s, p, n))
	}},
	{"random programs of several streams do what they do without a graph", func(f *fixture) {
		for seed := range uint64(25) {
			f.randomGraph(rand.New(rand.NewPCG(seed, 1)))
		}
	}},
	{"replays of one graph come one after the other, on any streams", func(f *fixture) {
		const n = 64
		a, b, p := f.stream(), f.stream(), f.alloc(n)
		g := f.captured(a, func() { f.addOne(a, p, n) })
		release := f.block(a)
		require.NoError(f, a.Memset(p, 0, n))
		require.NoError(f, g.Replay(a))
		require.NoError(f, g.Replay(b))
		e := f.recorded(b)
		require.False(f, f.done(e), "it waits for the replay on the other stream")
		require.NoError(f, a.Wait(e))
		release()
		f.same(filled(n, 2), f.read(a, p, n))
	}},
	{"many goroutines replay one graph", func(f *fixture) {
		const n, goroutines, each = 64, 4, 100
		s, side, p := f.stream(), f.stream(), f.alloc(n)
		fork, join := f.event(false), f.event(false)
		g := f.captured(s, func() {
			require.NoError(f, s.Record(fork))
			require.NoError(f, side.Wait(fork))
			f.addOne(side, p, n)
			require.NoError(f, side.Record(join))
			require.NoError(f, s.Wait(join))
			f.addOne(s, p, n)
		})
		require.NoError(f, s.Memset(p, 0, n))
		f.synchronize(s)
		streams := make([]device.Stream, goroutines)
		for i := range streams {
			streams[i] = f.stream()
		}
		f.together(goroutines, func(i int) error {
			for range each {
				if err := g.Replay(streams[i]); err != nil {
					return err
				}
			}
			return streams[i].Synchronize(background)
		})
		f.same(filled(n, goroutines*each*2%256), f.read(s, p, n))
	}},
	{"an empty graph replays", func(f *fixture) {
		s, e := f.stream(), f.event(false)
		g := f.captured(s, func() {})
		require.Zero(f, g.Nodes())
		release := f.block(s)
		require.NoError(f, g.Replay(s))
		require.NoError(f, s.Record(e))
		require.False(f, f.done(e))
		release()
		f.synchronize(s)
	}},
	{"streams and events of a capture may be closed", func(f *fixture) {
		const n = 64
		s, p := f.stream(), f.alloc(n)
		var streams [2]device.Stream
		var events [2]device.Event
		for i := range streams {
			var err, err2 error
			streams[i], err = f.dev.NewStream(device.StreamOptions{})
			events[i], err2 = f.dev.NewEvent(device.EventOptions{})
			require.NoError(f, errors.Join(err, err2))
		}
		a, b, fork, join := streams[0], streams[1], events[0], events[1]
		g := f.captured(a, func() {
			f.fill(a, p, n, 3)
			require.NoError(f, a.Record(fork))
			require.NoError(f, b.Wait(fork))
			require.NoError(f, fork.Close())
			f.addOne(b, p, n)
			require.NoError(f, b.Record(join))
			require.NoError(f, a.Wait(join))
		})
		require.NoError(f, errors.Join(join.Close(), a.Close(), b.Close()))
		require.NoError(f, g.Replay(s))
		f.same(filled(n, 4), f.read(s, p, n))
	}},
	{"Launching sees a replay as one kernel", func(f *fixture) {
		var told []string
		s, err := f.dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) {
			told = append(told, name)
			return func(err error) { require.NoError(f, err); told = append(told, "launched") }
		}})
		require.NoError(f, err)
		f.cleanup(s.Close)
		p := f.alloc(64)
		g := f.captured(s, func() {
			f.addOne(s, p, 64)
			f.addOne(s, p, 64)
		})
		require.Empty(f, told, "nothing was launched")
		require.NoError(f, g.Replay(s))
		require.NoError(f, g.Replay(s))
		require.Equal(f, []string{"graph", "launched", "graph", "launched"}, told)
	}},
	{"Close waits for replays, and refuses later ones", func(f *fixture) {
		const n = 64
		s, p := f.stream(), f.alloc(n)
		require.NoError(f, s.Memset(p, 0, n))
		g := f.captured(s, func() { f.addOne(s, p, n) })
		release := f.block(s)
		require.NoError(f, g.Replay(s))
		f.waits(release, func() {
			f.together(3, func(int) error { return g.Close() })
		})
		f.refused(g.Replay(s), device.ErrClosed)
		f.refused(g.Update(g), device.ErrClosed)
		require.NoError(f, g.Close())
		require.Equal(f, 1, g.Nodes())
		f.same(filled(n, 1), f.read(s, p, n))
	}},
	{"streams of other devices are refused", func(f *fixture) {
		s := f.stream()
		g := f.captured(s, func() {})
		f.refused(g.Replay(nil), device.ErrInvalid)
		f.refused(g.Update(nil), device.ErrInvalid)
		d := f.own()
		other, err := d.NewStream(device.StreamOptions{})
		require.NoError(f, err)
		f.refused(g.Replay(other), device.ErrInvalid)
		e := f.event(false)
		c := f.begin(s)
		require.NoError(f, s.Record(e))
		f.refused(other.Wait(e), device.ErrCapturing)
		g2, err := c.EndCapture()
		require.NoError(f, errors.Join(err, g2.Close(), d.Close()))
	}},
	{"a device's Close closes graphs and ends captures", func(f *fixture) {
		d := f.own()
		s, err := d.NewStream(device.StreamOptions{})
		require.NoError(f, err)
		c, ok := s.(device.GraphCapturer)
		require.True(f, ok)
		require.NoError(f, c.BeginCapture())
		g, err := c.EndCapture()
		require.NoError(f, err)
		require.NoError(f, g.Replay(s))
		require.NoError(f, c.BeginCapture())
		require.NoError(f, d.Close())
		f.refused(c.BeginCapture(), device.ErrClosed)
		_, err = c.EndCapture()
		f.refused(err, device.ErrClosed)
		f.refused(g.Replay(s), device.ErrClosed)
		require.NoError(f, g.Close())
	}},
}

// capturing holds the tests of backends that can capture.
func capturing(tests []test) []test {
	all := make([]test, len(tests))
	for i, t := range tests {
		all[i] = test{t.name, func(f *fixture) {
			if _, ok := f.stream().(device.GraphCapturer); !ok {
				f.Skip("the backend captures nothing")
			}
			t.run(f)
		}}
	}
	return all
}

// begin begins a capture of s.
func (f *fixture) begin(s device.Stream) device.GraphCapturer {
	f.Helper()
	c, ok := s.(device.GraphCapturer)
	require.True(f, ok)
	require.NoError(f, c.BeginCapture())
	require.True(f, c.Capturing())
	return c
}

// captured returns the graph of the work that work queues, from a capture of s.
func (f *fixture) captured(s device.Stream, work func()) device.Graph {
	f.Helper()
	c := f.begin(s)
	work()
	g, err := c.EndCapture()
	require.NoError(f, err)
	require.False(f, c.Capturing())
	f.cleanup(g.Close)
	return g
}

// randomGraph captures operations on buffers on random streams, with waits only for the events of
// the operations that they depend on. After some replays it compares the buffers with the result of
// running the operations one by one.
func (f *fixture) randomGraph(r *rand.Rand) {
	const n, buffers = 64, 5
	streams := []device.Stream{f.stream(), f.stream(), f.stream()}
	var p [buffers]device.Ptr
	var model [buffers][]byte
	for i := range p {
		p[i], model[i] = f.alloc(n), filled(n, byte(i))
		f.fill(streams[0], p[i], n, byte(i))
	}
	f.synchronize(streams[0])
	var steps []func() // on the model
	g := f.captured(streams[0], func() {
		begin := f.recorded(streams[0])
		for _, s := range streams[1:] {
			require.NoError(f, s.Wait(begin))
		}
		var written [buffers]device.Event
		var readers [buffers][]device.Event
		for range 1 + r.IntN(40) {
			s, to, from, value := streams[r.IntN(len(streams))], r.IntN(buffers), r.IntN(buffers), byte(r.Uint32())
			for _, e := range append(readers[to], written[to], written[from]) {
				if e != nil {
					require.NoError(f, s.Wait(e))
				}
			}
			switch kind := r.IntN(3); {
			case kind == 0:
				require.NoError(f, s.Memset(p[to], value, n))
				steps = append(steps, func() { copy(model[to], filled(n, value)) })
			case kind == 1 && to != from:
				require.NoError(f, s.CopyD2D(p[to], p[from]+n/2, n/2))
				steps = append(steps, func() { copy(model[to], model[from][n/2:]) })
			default:
				f.addOne(s, p[to], n)
				steps = append(steps, func() {
					for i := range model[to] {
						model[to][i]++
					}
				})
			}
			e := f.recorded(s)
			readers[from] = append(readers[from], e)
			written[to], readers[to] = e, nil
		}
		for _, s := range streams[1:] {
			require.NoError(f, streams[0].Wait(f.recorded(s)))
		}
	})
	for i := range 1 + r.IntN(3) {
		require.NoError(f, g.Replay(streams[i%len(streams)]))
		for _, step := range steps {
			step()
		}
	}
	f.synchronize(f.dev)
	for i := range p {
		f.same(model[i], f.read(streams[0], p[i], n))
	}
	require.NoError(f, g.Close())
}
