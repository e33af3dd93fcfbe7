package devicetest

import (
	"errors"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var captureTests = []test{
	{"calls that can't be captured are refused, and the capture continues", func(f *fixture) {
		const n = 64
		s, p, host, outside := f.stream(), f.alloc(n), f.pinned(n), f.event(false)
		before := f.captured(s, func() {})
		require.NoError(f, s.Memset(p, 0, n))
		require.NoError(f, s.Record(outside))
		f.synchronize(outside)
		c := f.begin(s)
		f.addOne(s, p, n)
		_, err := s.Query()
		for op, err := range map[string]error{
			"Query":        err,
			"Synchronize":  s.Synchronize(background),
			"OnDone":       s.OnDone(func(error) { panic("it must not run") }),
			"Close":        s.Close(),
			"BeginCapture": c.BeginCapture(),
			"Replay":       before.Replay(s),
			"Wait":         s.Wait(outside),
			"CopyH2D":      s.CopyH2D(p, make([]byte, n)),
			"CopyD2H":      s.CopyD2H(make([]byte, n), p),
			"Copy2D":       s.Copy2D(&device.Copy2D{Width: 8, Height: 8, Dst: p, DstPitch: 8, SrcHost: make([]byte, n), SrcPitch: 8}),
		} {
			e := f.refused(err, device.ErrCapturing)
			require.Equal(f, op, e.Op)
			require.NotZero(f, e.Code, op)
		}
		require.ErrorIs(f, s.CopyH2D(p, make([]byte, n)), device.ErrNotPinned)
		f.refused(f.dev.Synchronize(background), device.ErrCapturing)
		f.refused(s.Memset(p, 1, n+1), device.ErrInvalid)
		require.NoError(f, s.Wait(f.event(false)), "an event that was never recorded is complete")
		require.True(f, c.Capturing())
		require.False(f, s.Closed())
		require.NoError(f, s.CopyD2H(host, p))
		g, err := c.EndCapture()
		require.NoError(f, err)
		defer func() { require.NoError(f, g.Close()) }()
		require.Equal(f, 2, g.Nodes())
		require.NoError(f, g.Replay(s))
		f.synchronize(s)
		f.same(filled(n, 1), host)
		require.True(f, f.done(s))
		f.synchronize(f.dev)
	}},
	{"the order of a capture is that of its operations", captureOrder},
	{"a Close that meets a BeginCapture, or a Wait that joins, falls on one side of it", closeMeetsCapture},
	{"events of a capture belong to it", func(f *fixture) {
		s, other, e, timed := f.stream(), f.stream(), f.event(false), f.event(true)
		require.NoError(f, s.Record(timed))
		f.synchronize(s)
		check := func() {
			_, err := e.Query()
			f.refused(err, device.ErrCapturing)
			f.refused(e.Synchronize(background), device.ErrCapturing)
			_, err = f.dev.Elapsed(timed, timed)
			f.refused(err, device.ErrCapturing)
		}
		c := f.begin(s)
		require.NoError(f, s.Record(e))
		require.NoError(f, s.Record(timed))
		check()
		g, err := c.EndCapture()
		require.NoError(f, err)
		check()
		f.refused(other.Wait(e), device.ErrCapturing)
		require.NoError(f, g.Replay(s))
		check()
		require.NoError(f, other.Record(e))
		f.synchronize(e)
		require.True(f, f.done(e))
		require.NoError(f, s.Wait(e))
		require.NoError(f, s.Record(timed))
		f.synchronize(timed)
		_, err = f.dev.Elapsed(timed, timed)
		require.NoError(f, err)
		require.NoError(f, g.Close())
	}},
	{"forked streams are captured until the end, and must be joined", func(f *fixture) {
		const n = 64
		s, side, p := f.stream(), f.stream(), f.alloc(n)
		fork, join := f.event(false), f.event(false)
		require.NoError(f, s.Memset(p, 0, n))
		f.synchronize(s)
		c := f.begin(s)
		other := side.(device.GraphCapturer)
		require.NoError(f, s.Record(fork))
		require.False(f, other.Capturing())
		require.NoError(f, side.Wait(fork))
		require.True(f, other.Capturing())
		f.addOne(side, p, n)
		f.refused(side.Synchronize(background), device.ErrCapturing)
		f.refused(side.Close(), device.ErrCapturing)
		_, err := other.EndCapture()
		f.refused(err, device.ErrCapturing)
		require.NoError(f, side.Record(join))
		require.NoError(f, s.Wait(join))
		f.addOne(side, p, n) // after the join
		_, err = c.EndCapture()
		f.refused(err, device.ErrCapturing)
		require.False(f, c.Capturing())
		require.False(f, other.Capturing())
		for _, x := range []device.GraphCapturer{c, other} {
			_, err = x.EndCapture()
			f.refused(err, device.ErrInvalid)
		}
		f.addOne(side, p, n)
		f.same(filled(n, 1), f.read(side, p, n))
		f.addOne(s, p, n)
		f.same(filled(n, 2), f.read(s, p, n))
		require.NoError(f, f.captured(side, func() {}).Replay(s), "either stream can be captured")
	}},
	{"two captures at once", func(f *fixture) {
		const n = 64
		a, b, p, q := f.stream(), f.stream(), f.alloc(n), f.alloc(n)
		require.NoError(f, a.Memset(p, 0, n))
		require.NoError(f, a.Memset(q, 0, n))
		f.synchronize(a)
		e := f.event(false)
		first, second := f.begin(a), f.begin(b)
		f.addOne(a, p, n)
		require.NoError(f, a.Record(e))
		f.refused(b.Wait(e), device.ErrCapturing)
		f.addOne(b, q, n)
		f.addOne(b, q, n)
		ga, err := first.EndCapture()
		require.NoError(f, err)
		f.addOne(b, q, n)
		require.NoError(f, ga.Replay(a))
		gb, err := second.EndCapture()
		require.NoError(f, err)
		require.NoError(f, gb.Replay(b))
		f.synchronize(f.dev)
		f.same(filled(n, 1), f.read(a, p, n))
		f.same(filled(n, 3), f.read(a, q, n))
		f.together(4, func(int) error {
			for range 20 {
				s, err := f.dev.NewStream(device.StreamOptions{})
				if err != nil {
					return err
				}
				c := f.begin(s)
				if err := s.Launch(f.AddOne(f, f.dev, p, n)); err != nil {
					return err
				}
				g, err := c.EndCapture()
				if err != nil {
					return err
				}
				if err := g.Close(); err != nil {
					return err
				}
				if err := s.Close(); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(f, ga.Close())
		require.NoError(f, gb.Close())
		f.same(filled(n, 1), f.read(a, p, n))
	}},
	{"other work continues during a capture", func(f *fixture) {
		const n = 64
		s, other, p, e := f.stream(), f.stream(), f.alloc(n), f.event(false)
		release := f.block(s) // before the capture
		g := f.captured(s, func() {
			f.fill(s, p, n, 5)
			q, err := f.dev.Alloc(n)
			require.NoError(f, err)
			f.fill(other, q, n, 6)
			require.NoError(f, other.Record(e))
			f.synchronize(e)
			f.same(filled(n, 6), f.read(other, q, n))
			require.True(f, f.done(other))
			release()
			require.NoError(f, f.dev.Free(q))
			ran := make(chan error)
			require.NoError(f, other.OnDone(func(err error) { ran <- err }))
			require.NoError(f, <-ran)
		})
		require.NoError(f, g.Replay(other))
		f.same(filled(n, 5), f.read(other, p, n))
	}},
	{"to free memory waits for what was queued before a capture", func(f *fixture) {
		const n = 64
		s := f.stream()
		p, err := f.dev.Alloc(n)
		require.NoError(f, err)
		release := f.block(s)
		f.addOne(s, p, n)
		c := f.begin(s)
		f.waits(release, func() { require.NoError(f, f.dev.Free(p)) })
		require.True(f, c.Capturing())
		g, err := c.EndCapture()
		require.NoError(f, err)
		require.NoError(f, g.Close())
	}},
	{"memory of a graph can't be freed", func(f *fixture) {
		const n = 4096
		s, q := f.stream(), f.alloc(n)
		p, err := f.dev.Alloc(n)
		require.NoError(f, err)
		pinned, err := f.dev.AllocPinned(n)
		require.NoError(f, err)
		registered := make([]byte, n)
		require.NoError(f, f.dev.Register(registered))
		type memory struct{ use, free func() error }
		all := []memory{
			{func() error { return s.Launch(f.AddOne(f, f.dev, p+8, 8)) }, func() error { return f.dev.Free(p) }},
			{func() error { return s.CopyH2D(q, pinned[8:16]) }, func() error { return f.dev.FreePinned(pinned) }},
			{func() error { return s.CopyD2H(registered[:1], q) }, func() error { return f.dev.Unregister(registered) }},
		}
		if v, ok := f.dev.(device.VirtualMemory); ok {
			at := f.reserve(v.Granularity())
			require.NoError(f, v.Map(at, v.Granularity()))
			all = append(all, memory{func() error { return s.Memset(at, 1, 8) }, func() error { return v.Unmap(at, v.Granularity()) }})
		}
		for _, m := range all {
			c := f.begin(s)
			require.NoError(f, m.use())
			f.refused(m.free(), device.ErrInvalid)
			g, err := c.EndCapture()
			require.NoError(f, err)
			g2 := f.captured(s, func() { require.NoError(f, m.use()) })
			f.refused(m.free(), device.ErrInvalid)
			require.NoError(f, g.Replay(s))
			f.synchronize(s)
			require.NoError(f, g.Close())
			f.refused(m.free(), device.ErrInvalid)
			require.NoError(f, g2.Close())
			require.NoError(f, m.free())
		}
	}},
	{"Update replaces a graph's parameters", func(f *fixture) {
		const n = 64
		s, side, fork, join := f.stream(), f.stream(), f.event(false), f.event(false)
		p, err := f.dev.Alloc(n)
		require.NoError(f, err)
		q := f.alloc(n)
		at := p
		branched := func(first, last func()) {
			first()
			require.NoError(f, s.Record(fork))
			require.NoError(f, side.Wait(fork))
			f.addOne(side, at, n)
			require.NoError(f, side.Record(join))
			require.NoError(f, s.Wait(join))
			f.addOne(s, at, n/2)
			last()
		}
		graph := func(p device.Ptr, value byte) device.Graph {
			at = p
			return f.captured(s, func() {
				branched(func() { require.NoError(f, s.Memset(p, value, n)) }, func() {})
			})
		}
		f.fill(s, q, n, 100)
		g, with := graph(p, 1), graph(q, 50)
		release := f.block(s)
		require.NoError(f, g.Replay(s))
		f.waits(release, func() { require.NoError(f, g.Update(with)) })
		f.same(append(filled(n/2, 3), filled(n/2, 2)...), f.read(s, p, n))
		f.same(filled(n, 100), f.read(s, q, n))
		require.NoError(f, f.dev.Free(p), "the graph has let it go")
		require.NoError(f, g.Replay(s))
		f.same(append(filled(n/2, 52), filled(n/2, 51)...), f.read(s, q, n))
		require.NoError(f, g.Update(with), "again, and of itself")
		require.NoError(f, g.Update(g))
		require.NoError(f, with.Replay(side), "the other one did not change")
		f.synchronize(side)
		for _, different := range []func(){
			func() {},
			func() { f.addOne(s, q, n) },
			func() {
				require.NoError(f, s.Memset(q, 0, n))
				f.addOne(s, q, n)
				f.addOne(s, q, n)
				f.addOne(s, q, n)
			},
			func() { branched(func() { f.addOne(s, q, n) }, func() {}) },
			func() { branched(func() { require.NoError(f, s.Memset(q, 0, n)) }, func() { f.addOne(s, q, n) }) },
		} {
			f.refused(g.Update(f.captured(s, different)), device.ErrInvalid)
		}
		require.NoError(f, with.Close())
		f.refused(f.dev.Free(q), device.ErrInvalid)
		f.fill(s, q, n, 9)
		require.NoError(f, g.Replay(s))
		f.same(append(filled(n/2, 52), filled(n/2, 51)...), f.read(s, q, n))
	}},
}

// closeMeetsCapture: the stream is either closed and in no capture, or captured, open, and closed
// later.
func closeMeetsCapture(f *fixture) {
	origin, forked, joined := f.stream(), f.event(false), f.event(false)
	for round := range 400 {
		s, joins := f.stream(), round%2 == 0
		c := s.(device.GraphCapturer)
		enter := c.BeginCapture
		if joins {
			c = f.begin(origin)
			require.NoError(f, origin.Record(forked))
			enter = func() error { return s.Wait(forked) }
		}
		var entered, closed error
		var ready atomic.Int32
		f.together(2, func(n int) error {
			for ready.Add(1); ready.Load() < 2; { // start both as close together as possible
			}
			if n == 0 {
				entered = enter()
			} else {
				closed = s.Close()
			}
			return nil
		})
		if entered == nil {
			f.refused(closed, device.ErrCapturing)
		} else {
			f.refused(entered, device.ErrClosed)
			require.NoError(f, closed)
		}
		if entered == nil && joins {
			require.NoError(f, errors.Join(s.Record(joined), origin.Wait(joined)))
		}
		if entered == nil || joins {
			g, err := c.EndCapture()
			require.NoError(f, err)
			require.NoError(f, errors.Join(g.Close(), s.Close()))
		}
		require.False(f, s.(device.GraphCapturer).Capturing())
		require.True(f, s.Closed())
	}
}
