package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var stickyTests = []test{
	capturing([]test{{"a fault inside of a replay", faultInReplay}})[0],
	{"failed work makes every later call fail", func(f *fixture) {
		s, other, p, host := f.stream(), f.stream(), f.alloc(64), f.pinned(64)
		e, launch := f.event(true), f.Fill(f, f.dev, p, 64, 1)
		f.fail(s)
		sticky := s.Synchronize(background)
		require.NotZero(f, f.refused(sticky, device.ErrSticky).Code)
		for _, err := range []error{
			f.dev.Synchronize(background), other.Synchronize(background),
			s.Memset(p, 1, 64), other.CopyH2D(p, host), other.CopyD2H(host, p), other.CopyD2D(p, p+32, 32),
			other.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, SrcHost: host, SrcPitch: 8}),
			other.Launch(launch), other.Record(e), other.Wait(e), other.OnDone(func(error) {}),
			f.dev.Free(p), f.dev.FreePinned(host), f.dev.Register(make([]byte, 10)),
			e.Synchronize(background),
		} {
			f.refused(err, device.ErrSticky)
			require.Equal(f, sticky.Error(), err.Error())
		}
		_, err := f.dev.Alloc(64)
		f.refused(err, device.ErrSticky)
		_, err = f.dev.AllocPinned(64)
		f.refused(err, device.ErrSticky)
		_, _, err = f.dev.MemInfo()
		f.refused(err, device.ErrSticky)
		_, err = f.dev.NewStream(device.StreamOptions{})
		f.refused(err, device.ErrSticky)
		_, err = f.dev.NewEvent(device.EventOptions{})
		f.refused(err, device.ErrSticky)
		_, err = other.Query()
		f.refused(err, device.ErrSticky)
		_, err = e.Query()
		f.refused(err, device.ErrSticky)
	}},
	{"later work fails with the error", func(f *fixture) {
		s, other, p := f.stream(), f.stream(), f.alloc(64)
		e := f.event(false)
		release := f.block(s)
		f.fail(s)
		f.addOne(s, p, 64)
		require.NoError(f, s.Record(e))
		require.NoError(f, other.Wait(e))
		results := make(chan error, 2)
		require.NoError(f, s.OnDone(func(err error) { results <- err }))
		require.NoError(f, other.OnDone(func(err error) { results <- err }))
		release()
		f.refused(<-results, device.ErrSticky)
		f.refused(<-results, device.ErrSticky)
		f.refused(e.Synchronize(background), device.ErrSticky)
		f.refused(other.Synchronize(background), device.ErrSticky)
	}},
	{"a call that waits returns it", func(f *fixture) {
		s := f.stream()
		release := f.block(s)
		f.fail(s)
		e := f.recorded(s)
		results := make(chan error)
		go func() { results <- s.Synchronize(background) }()
		go func() { results <- e.Synchronize(background) }()
		go func() { results <- f.dev.Synchronize(background) }()
		release()
		for range 3 {
			f.refused(<-results, device.ErrSticky)
		}
	}},
	{"Close works, and returns it", func(f *fixture) {
		s := f.stream()
		f.alloc(64)
		f.fail(s)
		f.refused(f.dev.Close(), device.ErrSticky)
		require.True(f, s.Closed())
		require.NoError(f, f.dev.Close())
		f.refused(s.Synchronize(background), device.ErrClosed)
	}},
}

func (f *fixture) fail(s device.Stream) {
	f.Helper()
	f.needsFault()
	f.stuck = true
	f.Fault(f, f.dev, s)
}

func (f *fixture) needsFault() {
	f.Helper()
	if f.Fault == nil {
		f.Skip("the backend can't fail on demand")
	}
}

func faultInReplay(f *fixture) {
	f.needsFault()
	s, side, p := f.stream(), f.stream(), f.alloc(64)
	fork, join := f.event(false), f.event(false)
	c := f.begin(s)
	f.addOne(s, p, 64)
	require.NoError(f, s.Record(fork))
	require.NoError(f, side.Wait(fork))
	f.fail(side)
	require.NoError(f, side.Record(join))
	f.addOne(s, p, 64)
	require.NoError(f, s.Wait(join))
	g, err := c.EndCapture()
	require.NoError(f, err)
	f.synchronize(s)
	require.NoError(f, g.Replay(s))
	sticky := s.Synchronize(background)
	f.refused(sticky, device.ErrSticky)
	for _, err := range []error{g.Replay(s), g.Replay(side), g.Update(g), c.BeginCapture(), side.Synchronize(background)} {
		require.EqualError(f, err, sticky.Error())
	}
	require.NoError(f, g.Close())
	f.refused(g.Replay(s), device.ErrSticky)
}
