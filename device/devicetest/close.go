package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var closeTests = []test{
	{"a stream's Close waits for its work", func(f *fixture) {
		const n = 64
		s, other, p := f.stream(), f.stream(), f.alloc(n)
		release := f.block(s)
		f.fill(s, p, n, 5)
		e := f.recorded(s)
		require.False(f, s.Closed())
		f.waits(release, func() { require.NoError(f, s.Close()) })
		require.True(f, s.Closed())
		require.True(f, f.done(e), "events outlive the stream")
		require.NoError(f, other.Wait(e))
		f.same(filled(n, 5), f.read(other, p, n))
		require.NoError(f, s.Close())
	}},
	{"a closed stream refuses everything", func(f *fixture) {
		s, p, host, e := f.stream(), f.alloc(64), f.pinned(64), f.event(false)
		id, launch := s.ID(), f.Fill(f, f.dev, p, 64, 1)
		require.NoError(f, s.Close())
		for _, err := range []error{
			s.Memset(p, 1, 64), s.CopyH2D(p, host), s.CopyD2H(host, p), s.CopyD2D(p, p+32, 32),
			s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, SrcHost: host, SrcPitch: 8}),
			s.Launch(launch), s.Record(e), s.Wait(e), s.OnDone(func(error) {}),
			s.Synchronize(background),
		} {
			f.refused(err, device.ErrClosed)
		}
		_, err := s.Query()
		f.refused(err, device.ErrClosed)
		require.Equal(f, id, s.ID())
		require.Equal(f, f.dev.ID(), s.Device().ID())
		require.True(f, f.done(e), "the event was not recorded")
	}},
	{"a closed event refuses everything", func(f *fixture) {
		s, e, other := f.stream(), f.event(true), f.event(true)
		require.NoError(f, s.Record(e))
		require.NoError(f, s.Record(other))
		f.synchronize(s)
		require.NoError(f, e.Close())
		require.NoError(f, e.Close())
		_, err := e.Query()
		f.refused(err, device.ErrClosed)
		f.refused(e.Synchronize(background), device.ErrClosed)
		f.refused(s.Record(e), device.ErrClosed)
		f.refused(s.Wait(e), device.ErrClosed)
		_, err = f.dev.Elapsed(e, other)
		f.refused(err, device.ErrClosed)
		require.True(f, e.Timed())
	}},
	{"a device's Close waits for its streams and closes them", func(f *fixture) {
		a, b := f.stream(), f.stream()
		release := f.block(a)
		f.stuck = true
		f.waits(release, func() { require.NoError(f, f.dev.Close()) })
		require.True(f, a.Closed())
		require.True(f, b.Closed())
		require.NoError(f, a.Close())
		require.NoError(f, f.dev.Close())
	}},
	{"a device's Close reports memory that is still in use", func(f *fixture) {
		for _, leave := range []func(d device.Device) error{
			func(d device.Device) error { _, err := d.Alloc(mib); return err },
			func(d device.Device) error { _, err := d.AllocPinned(mib); return err },
			func(d device.Device) error { return d.Register(make([]byte, mib)) },
		} {
			d := f.own()
			require.NoError(f, leave(d))
			err := d.Close()
			require.ErrorContains(f, err, "1.0 MiB")
			require.NoError(f, d.Close())
		}
	}},
	{"a closed device refuses everything", func(f *fixture) {
		d := f.dev
		s, p, host, e := f.stream(), f.alloc(64), f.pinned(64), f.event(true)
		require.NoError(f, s.Record(e))
		launch := f.Fill(f, d, p, 64, 1)
		name, id, properties := d.Name(), d.ID(), d.Properties()
		require.NoError(f, d.Free(p))
		require.NoError(f, d.FreePinned(host))
		f.stuck = true
		require.NoError(f, d.Close())
		for _, err := range []error{
			d.Free(p), d.FreePinned(host), d.Register(make([]byte, 64)), d.Unregister(host), d.Synchronize(background),
			s.Memset(p, 1, 64), s.Launch(launch), s.Record(e), s.Wait(e), s.OnDone(func(error) {}), s.Synchronize(background),
			e.Synchronize(background),
		} {
			f.refused(err, device.ErrClosed)
		}
		_, err := d.Alloc(64)
		f.refused(err, device.ErrClosed)
		_, err = d.AllocPinned(64)
		f.refused(err, device.ErrClosed)
		_, err = d.MappedPtr(host)
		f.refused(err, device.ErrClosed)
		_, _, err = d.MemInfo()
		f.refused(err, device.ErrClosed)
		_, err = d.NewStream(device.StreamOptions{})
		f.refused(err, device.ErrClosed)
		_, err = d.NewEvent(device.EventOptions{})
		f.refused(err, device.ErrClosed)
		_, err = d.Elapsed(e, e)
		f.refused(err, device.ErrClosed)
		_, err = e.Query()
		f.refused(err, device.ErrClosed)
		require.NoError(f, e.Close())
		require.Equal(f, name, d.Name())
		require.Equal(f, id, d.ID())
		require.Equal(f, properties, d.Properties())
	}},
}
