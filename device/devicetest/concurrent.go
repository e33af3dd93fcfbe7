package devicetest

import (
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var concurrentTests = []test{
	{"many goroutines queue on one stream", func(f *fixture) {
		const goroutines, each, n = 8, 200, 64
		s, p := f.stream(), f.alloc(n)
		require.NoError(f, s.Memset(p, 0, n))
		f.together(goroutines, func(int) error {
			for range each {
				if err := s.Launch(f.AddOne(f, f.dev, p, n)); err != nil {
					return err
				}
			}
			return nil
		})
		f.same(filled(n, goroutines*each%256), f.read(s, p, n))
	}},
	{"many goroutines have their own memory, streams and events", func(f *fixture) {
		f.together(8, func(g int) error {
			for i := range 30 {
				if err := f.roundTrip(int64(1+g*1000+i), byte(g*30+i)); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"many goroutines use one event", func(f *fixture) {
		e := f.event(false)
		streams := make([]device.Stream, 4)
		for i := range streams {
			streams[i] = f.stream()
		}
		f.together(len(streams), func(g int) error {
			for range 200 {
				if err := streams[g].Record(e); err != nil {
					return err
				}
				if err := streams[(g+1)%len(streams)].Wait(e); err != nil {
					return err
				}
				if _, err := e.Query(); err != nil {
					return err
				}
			}
			return e.Synchronize(background)
		})
		f.synchronize(f.dev)
	}},
	{"a stream may be closed while others queue", func(f *fixture) {
		for range 20 {
			s, err := f.dev.NewStream(device.StreamOptions{})
			require.NoError(f, err)
			p := f.alloc(64)
			require.NoError(f, s.Memset(p, 0, 64))
			f.together(4, func(g int) error {
				if g == 0 {
					return s.Close()
				}
				for range 50 {
					if err := s.Launch(f.AddOne(f, f.dev, p, 64)); err != nil {
						f.refused(err, device.ErrClosed)
						break
					}
				}
				return nil
			})
			require.True(f, s.Closed())
		}
	}},
}

// together runs work on n goroutines and waits until all have returned. None may return an error.
func (f *fixture) together(n int, work func(g int) error) {
	f.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for g := range n {
		all.Go(func() { errs[g] = work(g) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(f, err)
	}
}

// roundTrip allocates everything anew, passes n bytes through it, and frees everything.
func (f *fixture) roundTrip(n int64, value byte) (err error) {
	step := func(next func() error) {
		if err == nil {
			err = next()
		}
	}
	var s device.Stream
	var e device.Event
	var p device.Ptr
	var host []byte
	step(func() error { s, err = f.dev.NewStream(device.StreamOptions{}); return err })
	step(func() error { e, err = f.dev.NewEvent(device.EventOptions{}); return err })
	step(func() error { p, err = f.dev.Alloc(n); return err })
	step(func() error { host, err = f.dev.AllocPinned(n); return err })
	step(func() error { return s.Launch(f.Fill(f, f.dev, p, n, value)) })
	step(func() error { return s.CopyD2H(host, p) })
	step(func() error { return s.Record(e) })
	step(func() error { return f.dev.Free(p) }) // waits for the copy
	step(func() error { return e.Synchronize(background) })
	step(func() error {
		f.same(filled(n, value), host)
		return f.dev.FreePinned(host)
	})
	step(e.Close)
	step(s.Close)
	return err
}
